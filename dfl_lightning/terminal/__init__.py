"""What a run prints: the banner, notes, progress and explanations."""
