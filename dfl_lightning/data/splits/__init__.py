"""Splits, which list the samples of each client; their files and checks."""
