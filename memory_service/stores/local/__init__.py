"""The store in a folder of files, `file:///path`: SQLite holds everything, a FAISS index beside it can be rebuilt.

    memory-service.lock     one process writes
    kb-000001-NAME/         a knowledge base (`store`, `knowledge_base`)
        documents.sqlite3   documents, references, vectors, payloads (`tables`, `database`)
        index.faiss         a copy of the vectors as a graph (`index`)

decision 0034 says why it looks like this.
"""
