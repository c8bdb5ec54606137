"""Checkpoints: files, files in pieces, what they must agree with, and models taken out of them."""
