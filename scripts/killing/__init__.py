"""The parts of the kill tests: processes that are started and ended, and how two runs are compared."""
