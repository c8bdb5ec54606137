"""Readers of the formats in which data sets are stored."""
