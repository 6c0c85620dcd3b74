"""The hybrid model family: one function for training, prefill and decoding."""
