"""Calls to the memory service over gRPC: channels, requests, their errors, and what is fetched whole."""
