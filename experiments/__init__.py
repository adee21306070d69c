"""Studies whose results stand in the documents. Not part of any wheel: `python -m experiments --help`."""
