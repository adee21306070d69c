"""Operation: backup, doctor, metrics, logs, tracing."""
