"""Small things that everybody uses and that know nothing of federations."""
