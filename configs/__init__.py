"""Runs as Python: one file a stage, each with the command, the time and the result in its docstring."""
