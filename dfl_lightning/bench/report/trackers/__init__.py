"""Copies of runs for TensorBoard and Weights & Biases, written by these libraries."""
