"""Engines: how the clients of a cohort are trained and scored."""
