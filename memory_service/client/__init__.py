"""Clients of a service: connection, ingestion of files and folders, Ray, backups."""
