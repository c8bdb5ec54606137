"""Aggregation: how votes become weights."""
