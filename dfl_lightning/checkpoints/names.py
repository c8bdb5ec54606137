"""The names of checkpoints in a run folder, in a module that can be imported without torch."""

FOLDER = "checkpoints"
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
"""The checkpoint before the last one, in case that is damaged."""
