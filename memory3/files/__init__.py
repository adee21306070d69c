"""Files that parts exchange: a bundle of an exported model, and the SQLite file of documents with their memories.

In: a folder or a connection. Out: typed values; a damaged or foreign file is refused.
"""
