"""What leaves a run folder: state dicts and bundles."""
