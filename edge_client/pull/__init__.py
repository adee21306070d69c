"""Bundles and memory packs from a service or a folder to this device."""
