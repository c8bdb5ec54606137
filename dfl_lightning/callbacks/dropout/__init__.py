"""Client dropout: who is up in a round."""
