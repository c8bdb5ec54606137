"""Settings of runs in plain words, their differences between methods, and unequal conditions."""
