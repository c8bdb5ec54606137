"""The user's optimizer, its states and its schedule."""
