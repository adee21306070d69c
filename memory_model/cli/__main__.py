"""`python -m memory_model.cli`, which torchrun starts."""

from memory_model.cli import app

if __name__ == "__main__":
    app()
