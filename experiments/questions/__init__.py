"""Question sets: made from the factbook and from what people asked, split for training, development and test."""
