"""What `compare.py` compares beyond the variants of one config."""
