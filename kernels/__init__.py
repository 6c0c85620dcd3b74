"""One folder an op: ref.py (the definition), kernel.py (Pallas), ops.py (checks, gradient, block sizes)."""
