"""Trials before the first round: networks, losses and optimizers on a few batches."""
