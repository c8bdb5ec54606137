"""Calls of a network by the engines: the parts of its inputs, its outputs, and random numbers of a training pass."""
