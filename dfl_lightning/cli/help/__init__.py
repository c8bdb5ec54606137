"""Screens of help."""
