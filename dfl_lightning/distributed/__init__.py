"""Several processes: how they start and end, and what they send to each other."""
