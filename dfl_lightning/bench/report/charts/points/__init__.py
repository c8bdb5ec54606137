"""Charts with a point for each method: against its cost, and against its settings."""
