"""As m003, for the references of one length of vectors."""

ONE_SERVER = True
PER_DIMENSION = True

STATEMENTS = ["ALTER TABLE references_{dimension} MODIFY SETTING non_replicated_deduplication_window = 1000"]
