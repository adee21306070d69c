"""Tuning a model to read memories, ranking its heads, fitting its codec."""
