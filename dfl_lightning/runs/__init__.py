"""What a run writes and what reads it back: run folders, their tables, the summary."""
