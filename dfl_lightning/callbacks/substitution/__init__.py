"""Substitution: what is mixed for the clients that dropped out."""
