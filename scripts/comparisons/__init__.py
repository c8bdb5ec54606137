"""Comparisons of `compare.py` beyond the variants of one config."""
