"""Model folders and checkpoints: what a base model is, read from Hugging Face folders or GGUF files."""
