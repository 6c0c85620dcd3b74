"""Shared settings of the tests: eight CPU devices, strict ranks, and the optional reference data."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

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
