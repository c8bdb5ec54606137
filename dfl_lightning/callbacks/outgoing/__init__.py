"""Outgoing: messages that clients send instead of the models that they trained."""
