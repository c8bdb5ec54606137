"""Scores of models on samples: means, predictions and metrics."""
