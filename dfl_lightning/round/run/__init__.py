"""The run around the rounds: its parts, fits and number of rounds, and the types of its trainer and module."""
