"""Small helpers that all rooms use and that do not depend on federations."""
