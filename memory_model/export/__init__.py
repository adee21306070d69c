"""Model to ONNX: the graphs that a device runs, and the bundle that holds them."""
