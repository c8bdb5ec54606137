"""Helpers for files: atomic writing, locks, checksums, and search by name."""
