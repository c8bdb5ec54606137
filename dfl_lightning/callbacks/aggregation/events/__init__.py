"""Aggregations of an asynchronous clock that mix models as they are at the instant when a client finishes."""
