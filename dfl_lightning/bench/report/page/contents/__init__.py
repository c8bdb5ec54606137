"""Data of the parts of the page that a script draws from the reader's choice."""
