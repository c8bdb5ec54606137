"""Layers that work on k clients at once."""
