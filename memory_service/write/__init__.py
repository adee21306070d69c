"""The write path: documents in, references with vectors and compressed memories out, stored."""
