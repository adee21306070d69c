"""Names of the tasks of `memory-model adapt --mixture` and their default files, without importing torch."""

from __future__ import annotations

from pathlib import Path

TASKS = ("facts", "hard", "articles", "dialogue", "questions", "continual", "warmup", "keeping", "preferences")
QUESTIONS = Path("build/questions/squad_training.json")
"""Rows of `experiments split-questions`, for articles and preferences."""
REQUESTS = Path("data/requests.jsonl")
"""Small talk, for keeping."""
INTRODUCTIONS = Path("data/introductions.jsonl")
"""Questions about introductions of Wikipedia, for the task `questions`."""
