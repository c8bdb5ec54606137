"""Cells of a study: their configs, processes, states and checks."""
