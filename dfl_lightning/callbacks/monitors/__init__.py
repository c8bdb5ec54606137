"""Monitors: what is measured about a round in addition to the models' accuracy."""
