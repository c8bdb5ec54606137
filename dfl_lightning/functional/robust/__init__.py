"""Attacks, and averages that few adversaries cannot move far."""
