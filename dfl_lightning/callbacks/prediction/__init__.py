"""Prediction: class probabilities from more than the scores of one network."""
