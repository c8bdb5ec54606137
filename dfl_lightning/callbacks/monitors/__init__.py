"""Monitors: measures of a round in addition to the models' accuracy."""
