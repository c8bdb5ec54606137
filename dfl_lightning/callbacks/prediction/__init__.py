"""Prediction: what classes clients predict, beyond the scores of one network."""
