"""The command `memory-service`."""

from memory_service.cli.main import app as app
