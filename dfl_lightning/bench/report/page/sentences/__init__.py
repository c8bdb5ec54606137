"""Sentences of the page: verdicts, remarks on them, limits, and texts for screen readers."""
