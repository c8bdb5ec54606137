"""Substitution: rows that are mixed instead of those of clients that dropped out."""
