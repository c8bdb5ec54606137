"""User's optimizer, its kept states and its learning rate schedule."""
