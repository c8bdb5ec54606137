"""The loop engine: one client after the other with plain PyTorch."""
