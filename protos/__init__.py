"""The gRPC contract between the memory service and its clients: `memory/v1/*.proto` and the code generated from it."""
