"""The read path: query vectors in, ranked hits with payloads out."""
