"""Question sets: made from the factbook and from people's questions, split for training, development and test."""
