"""Studies whose results stand in docs/studies.md, and what made the shipped data. In no wheel.

`python -m experiments --help` in the repository.
"""
