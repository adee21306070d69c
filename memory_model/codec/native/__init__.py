"""What is compiled: the codec's decoder in C with what prepares its tables, and the search of a graph of vectors.

Every part has a path without it. `compile` makes the library where a C compiler is, `library` loads it where it was
made, `folded` and `gathered` are the two ways of decoding with it. `graph` is the search, for the service.
"""
