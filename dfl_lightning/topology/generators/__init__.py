"""Generators of graphs that do not change over the rounds, and of the Base-(k+1) graphs."""
