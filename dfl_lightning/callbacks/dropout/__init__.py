"""Client dropout: who is active in a round."""
