"""Aggregations that are robust against a few adversaries."""
