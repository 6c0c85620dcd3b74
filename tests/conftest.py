"""Shared settings of the tests: eight CPU devices, strict ranks, and the optional reference data."""

import atexit
import os
import pathlib
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile far more than they compute: without LLVM's optimiser they take a third of the time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# A program that several tests compile is compiled once; nothing is kept beyond the session.
_compiled = tempfile.mkdtemp(prefix="compiled-")
atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", _compiled)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def extra_dir() -> pathlib.Path:
    """The folder with reference outputs and real data, which is not part of the project."""
    where = os.environ.get("NEMOCASCADE_EXTRA")
    if not where or not pathlib.Path(where).is_dir():
        pytest.skip("NEMOCASCADE_EXTRA names no folder with the published reference outputs")
    return pathlib.Path(where)
