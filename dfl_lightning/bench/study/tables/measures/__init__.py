"""The numbers that a table compares, and how each is read from a run."""
