"""Run folders: their tables, the summary, and the reader of all of them."""
