"""Tools for many runs: studies, statistics, and pages that compare them. Rooms for a single run do not import them."""
