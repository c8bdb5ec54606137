"""Thresholds: the least score of a neighbour that a client learns from."""
