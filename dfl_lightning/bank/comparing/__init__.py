"""Cosines and distances between rows."""
