"""The store in a folder of files, `file:///path`: SQLite holds everything, a FAISS index beside it can be rebuilt.

    memory-service.lock     one process writes
    store.json              its knowledge bases (`store`)
    kb-000001/              one of them
        documents.sqlite3   documents, references, vectors, payloads (`tables`, `snapshot`, `database`)
        committed           the newest acknowledged batch, so that a lost journal is noticed
        index.faiss         a copy of the vectors as a graph (`index`); `knowledge_base` searches and writes both

decision 0034 says why it looks like this.
"""
