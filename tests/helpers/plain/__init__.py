"""The methods of docs/methods.md in plain numpy, float64, a client at a time, written from the papers.

Each module has a METHOD: what is computed, the examples, and a slow function that computes them. Nothing here imports the
library. `scripts/make_conformance.py` writes the examples to files.
"""
