"""Random numbers as functions of keys, and the generators of the process."""
