"""Layers that compute k clients at once."""
