"""Model to ONNX: the graphs that a device runs, and the bundle that carries them."""
