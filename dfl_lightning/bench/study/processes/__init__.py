"""Processes of a study: starting cells here, as forks or on a cluster."""
