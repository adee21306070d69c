"""What runs exported models: the interface of decoders, the layout of their caches, the embedder, ONNX Runtime.

In: graphs and their configuration. Out: vectors, and the contract that every decoder backend implements.
"""
