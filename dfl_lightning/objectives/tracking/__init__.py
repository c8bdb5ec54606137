"""Local rules that correct the drift between clients, by messages or by changes of the mixed models."""
