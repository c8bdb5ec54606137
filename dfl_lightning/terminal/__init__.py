"""The output of a run in a terminal: banner, notes, progress and `--explain`."""
