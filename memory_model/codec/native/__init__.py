"""The codec's decoder in C: `compile` makes the library where a C compiler is, `library` calls it, `decoder` uses it.

Where it was not made numpy decodes (`memory_model.codec.codec`).
"""
