"""Runs of several processes: their start and end, and the exchanges between them."""
