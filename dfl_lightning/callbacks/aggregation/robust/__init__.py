"""Aggregations that few adversaries cannot move far."""
