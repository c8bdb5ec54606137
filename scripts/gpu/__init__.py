"""Stages of `gpu_check.py`: each measures one thing on a GPU and returns a table."""
