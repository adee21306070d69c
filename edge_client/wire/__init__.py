"""Calls to the memory service over gRPC: channels, requests, their errors."""
