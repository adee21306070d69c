"""What a process says of itself: logs, traces, metrics."""
