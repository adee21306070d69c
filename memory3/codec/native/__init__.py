"""The codec's decoder in C: `compile` makes it where a C compiler is, `library` calls it; elsewhere numpy decodes."""
