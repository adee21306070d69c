"""The device's half: decodes with ONNX Runtime, asks the service for memories, puts them into the slots."""
