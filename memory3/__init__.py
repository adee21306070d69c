"""What every part shares, free of torch: errors and configuration, and the rooms text, codec, runtime, formats, files.

In: files and bytes of a model folder, a bundle or a user's documents. Out: typed values that service, device and
`memory_model` share. It imports none of them.
"""

from memory3.telemetry import turn_off

turn_off()

__version__ = "0.1.0"
"""Of everything in the repository; one release, one version."""
