"""Scenarios: each is one file with a `SCENARIO` and a YAML file of the same name with its usual settings."""
