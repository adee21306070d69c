"""Prose to train on, from what the package registries carry: fetched, cleaned, split, checked (torch-free)."""
