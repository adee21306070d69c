"""What older releases stored in another way, for the migrations of both stores."""

import hashlib

UNWRITTEN_MASK = hashlib.sha256(b"memory.v1: the memories of this document are not written yet").digest()
"""Before `written` was a column, the content hash of a document without memories was stored XOR this."""
