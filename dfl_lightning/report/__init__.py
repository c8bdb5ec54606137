"""What a run leaves: its folder, the terminal's lines, and the summary."""
