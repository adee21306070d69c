"""The decoder on ONNX Runtime: tokens and memories in, logits out; caches, providers."""
