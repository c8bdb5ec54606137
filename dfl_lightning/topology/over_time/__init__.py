"""Topologies whose graph changes from round to round."""
