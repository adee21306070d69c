"""The packaged model folder."""
