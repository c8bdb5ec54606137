"""The screens of `--help`, `--list` and `--GROUP.help`."""
