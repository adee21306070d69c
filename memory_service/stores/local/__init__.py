"""The store in a folder of files, `file:///path`: FAISS, a memory-mapped bank of payloads, sqlite for the texts.

    memory-service.lock    one process writes
    store.json             its knowledge bases (`register`)
    kb-000001/             one of them (`knowledge_base`)

docs/decisions/0012 says why it looks like this.
"""
