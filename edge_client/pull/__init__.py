"""Fetches the bundle and memory packs from a service: resumable, every byte checked, installed whole."""
