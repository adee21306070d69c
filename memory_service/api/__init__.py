"""The gRPC API: the server, its interceptors and one servicer for each service of memory.v1."""
