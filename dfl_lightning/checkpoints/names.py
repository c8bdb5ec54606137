"""Where a run folder has its checkpoints; here, since what only looks at folders need not import torch."""

FOLDER = "checkpoints"
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
"""The one before the last, in case that is damaged."""
