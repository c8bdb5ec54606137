"""Sentences of the page: verdicts, limits, remarks, and texts for screen readers."""
