"""Conversations longer than the cache: what is still known, and what it costs."""
