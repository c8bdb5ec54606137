"""Files: written whole, locked, checked, found by name."""
