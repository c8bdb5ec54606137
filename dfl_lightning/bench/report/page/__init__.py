"""The page of `dfl-report`: its sections, its texts, and how it becomes one file."""
