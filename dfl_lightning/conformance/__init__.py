"""Cases of every method as numbers, from which any implementation can be checked against the papers.

`python -m dfl_lightning.conformance ADAPTER` runs an adapter, a module with a function for each method that it offers,
on the cases beside this file; docs/conformance.md says what they hold.
"""
