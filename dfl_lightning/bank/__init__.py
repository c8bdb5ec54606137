"""Row sets: stored, compared and mixed."""
