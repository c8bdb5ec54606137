"""Readers of topology files and graph files, which check the graph of clients."""
