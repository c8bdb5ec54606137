"""How the engines call a network: the parts of its inputs, its outputs, and the random numbers of a training pass."""
