"""Cascade post-training of hybrid Mamba-2 / attention / MoE language models, as a pure-functional JAX program."""

__version__ = "0.1.0"
