"""Attacks, and averages that are robust against a few adversaries."""
