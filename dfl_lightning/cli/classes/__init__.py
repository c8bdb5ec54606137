"""Classes by name: those that a config may make, and the modules in which they are found."""
