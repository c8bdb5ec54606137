"""Random numbers that are functions of keys, and checks of the process' global generators."""
