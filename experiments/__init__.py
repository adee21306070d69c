"""Measurements of quality and cost, and what made the shipped data. In no wheel.

`python -m experiments --help` in the repository.
"""

import memory3  # noqa: F401  # turns off the telemetry of the libraries that studies import
