"""The command `edge-client`."""

import os

# Our errors report what gRPC would log about a failed call. It reads this when it is imported, so the command sets it
# first; a program that imports the SDK keeps its own setting.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
