"""The store in a folder of files, `file:///path`: SQLite holds everything, a FAISS index next to it can be rebuilt.

    memory-service.lock     one process writes
    kb-000001-NAME/         a knowledge base (`store`, `knowledge_base`)
        documents.sqlite3   documents, references, vectors, payloads (`tables`, `rows`, `database`)
        committed           the newest acknowledged batch, so that a lost journal is noticed
        index.faiss         a copy of the vectors as a graph (`index`)

decision 0034 says why it looks like this.
"""
