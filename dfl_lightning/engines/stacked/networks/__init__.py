"""Forward passes of k clients at once: traced, or merged into one batch of the plain network."""
