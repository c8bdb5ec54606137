"""Clocks: the simulated time at which clients finish their training."""
