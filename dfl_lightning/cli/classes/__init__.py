"""Classes by name: what configs may make, and from where."""
