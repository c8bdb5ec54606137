"""Outgoing: what leaves a client, in the place of the model that it trained."""
