"""What is compiled: the codec's decoder in C, and what prepares its tables. Every part has a path in numpy beside it.

`compile` makes the library where a C compiler is, `library` loads it where it was made, `folded` and `gathered` are the
two ways of decoding with it.
"""
