"""The parts of `scripts/kill_test.py`: processes that are started and ended, and how two runs are compared."""
