"""Pieces of `bench_engine.py` and `bench_memory.py`."""
