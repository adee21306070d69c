"""Fitting a product codec to key-value vectors, with FAISS; `memory3.codec` reads and applies what is fitted here."""
