"""Cases of every method as numbers, from which any implementation can be checked against the papers.

`python -m dfl_lightning.conformance ADAPTER` runs an adapter, a module with a function for each method that it offers,
on the cases in this folder. docs/conformance.md describes them.
"""
