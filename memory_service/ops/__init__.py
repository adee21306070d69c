"""Operation: backup, metrics, logs, tracing."""
