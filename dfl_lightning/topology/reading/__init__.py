"""From a topology file to a checked graph of clients."""
