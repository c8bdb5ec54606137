"""Adapters of this and other libraries for the conformance cases."""
