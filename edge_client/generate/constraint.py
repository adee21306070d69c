"""What may be said next: the protocol by which a grammar, or anything else, rules tokens out."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class TokenConstraint(Protocol):
    """Made for one answer, used by the thread that computes it. `edge_client.serve.grammar` has one for JSON."""

    def allow(self, logits: np.ndarray) -> np.ndarray:
        """The logits float32 [vocabulary] with -inf where a token is not permitted; may change them in place."""
        ...

    def took(self, token: int) -> None:
        """The token was chosen."""
        ...
