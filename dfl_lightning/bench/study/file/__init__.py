"""The study file: its keys, its cells and the settings of each."""
