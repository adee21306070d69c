"""Scenarios: each is one file with a `SCENARIO`."""
