"""Settings of runs: their words, their differences between methods, and unequal conditions."""
