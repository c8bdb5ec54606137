"""The commands: from the arguments of a command line to a config, and from there to a run."""
