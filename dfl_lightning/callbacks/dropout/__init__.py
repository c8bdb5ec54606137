"""Client dropout: the clients that are active in a round."""
