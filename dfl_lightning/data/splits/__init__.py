"""Splits: who has which sample, read, written and checked."""
