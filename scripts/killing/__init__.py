"""Parts of the kill tests: processes that are started and ended, and the comparison of two runs."""
