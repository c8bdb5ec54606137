"""Exports of a run: state dicts and bundles."""
