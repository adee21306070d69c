"""Studies whose results stand in docs/studies.md. In no wheel: `python -m experiments --help` in the repository."""
