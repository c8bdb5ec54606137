"""Memory, measurements and recorded steps of the stacked engine on a GPU."""
