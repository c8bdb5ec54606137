"""Helpers for users' code (its source, its place in errors), constructors' arguments, and postponed imports."""
