"""Thresholds: what score is enough to be learned from."""
