"""Clients of the service: connection, ingestion of files and folders, Ray."""
