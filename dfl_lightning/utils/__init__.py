"""Small helpers for all packages that do not depend on federated learning."""
