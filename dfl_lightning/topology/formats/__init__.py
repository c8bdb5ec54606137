"""Formats of graph files."""
