"""The data sets that can be named in a config."""
