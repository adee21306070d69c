"""Clients of a service: connection, ingestion of files and folders, workers that write memories, backups."""
