"""An insert that the client sends twice, because the connection broke before the answer came, is stored once.

Inserts to a server carry a token each. Replicated tables compare it anyway, plain ones with this setting only; the
embedded engine has no connection to break.
"""

ONE_SERVER = True

STATEMENTS = [
    f"ALTER TABLE {table} MODIFY SETTING non_replicated_deduplication_window = 1000"
    for table in ("knowledge_bases", "documents", "payloads", "intents", "totals")
]
