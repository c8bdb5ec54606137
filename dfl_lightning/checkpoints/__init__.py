"""Checkpoints: files and folders, the checks before a resume, the history of a run, and models as state dicts."""
