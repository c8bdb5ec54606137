"""Generators of graphs that stay the same."""
