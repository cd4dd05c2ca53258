"""Conversations, whatever API they come from: the request that all of them become, and its answer."""
