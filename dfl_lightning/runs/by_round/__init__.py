"""The rounds of a run: rows of metrics.csv, evaluations of the clients, and arrays by round."""
