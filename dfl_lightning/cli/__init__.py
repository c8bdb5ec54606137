"""The commands: from the words of a command line to a config, and from there to a run."""
