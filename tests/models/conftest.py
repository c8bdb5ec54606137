"""Each engine in turn, and what it is compared with."""

from banks import engine, naive  # noqa: F401
