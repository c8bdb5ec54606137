"""Graphs that change from round to round."""
