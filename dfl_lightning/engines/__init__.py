"""Engines, which train and score the clients of a cohort."""
