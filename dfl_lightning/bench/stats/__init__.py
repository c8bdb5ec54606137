"""Statistics over seeds: intervals, comparisons of several methods, and which runs are paired."""
