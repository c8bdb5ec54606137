"""Decisions and recordings of the stacked engine on a GPU."""
