"""Answers scored with memories, with the same references as text, and without."""
