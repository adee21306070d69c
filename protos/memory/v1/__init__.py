"""Version 1 of the contract: messages in `*_pb2`, clients and servicers in `*_pb2_grpc`. `make protos` writes both."""
