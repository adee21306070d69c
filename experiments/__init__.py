"""Measurements of quality and cost, and what made the shipped data. In no wheel.

`python -m experiments --help` in the repository.
"""
