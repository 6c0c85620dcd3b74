"""Rows of data as records, where they come from, and how messages are parsed; never imports jax."""
