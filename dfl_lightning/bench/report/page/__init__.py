"""The page of `dfl-report`: its sections, its sentences, and its assembly into one file."""
