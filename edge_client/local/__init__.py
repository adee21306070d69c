"""Memories that the device writes itself, of its own files and conversations, and keeps in one SQLite file each.

texts -> references -> memories and vectors (writer) -> a file (knowledge_base) -> hits next to the service's (recall)
"""
