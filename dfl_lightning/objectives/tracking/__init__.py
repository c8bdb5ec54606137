"""Local rules that correct the drift between clients over the graph."""
