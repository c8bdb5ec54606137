"""Selection: the clients that each receiver learns from."""
