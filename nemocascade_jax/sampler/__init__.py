"""Sampling of completions: the distribution that is drawn from, and the engine that draws."""
