"""Runs of a few rounds in which clients fail: what they are made of, how they are played, and how they are drawn."""
