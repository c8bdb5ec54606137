"""Banks of small clients, and what they are compared with."""

from banks import engine, federation, make_data, make_network, naive  # noqa: F401
