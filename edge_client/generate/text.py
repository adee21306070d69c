"""Tokens to text as they come: only whole characters leave, stop strings are found across tokens."""

from __future__ import annotations

from collections.abc import Sequence

from memory_model.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"
_LONGEST_CHARACTER = 4
"""Bytes of UTF-8's longest character: more tokens than this without one are really broken bytes."""


class StreamText:
    """The growing text of one answer. `push` returns what may be shown; `flush` the rest at the end."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._pending: list[int] = []
        self._before: list[int] = []
        self._held = ""
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; returns new text, which may be empty. After a stop string `stopped` is True."""
        self._pending.append(token)
        piece = self._decoded()
        if piece.endswith(_INCOMPLETE) and len(self._pending) < _LONGEST_CHARACTER:
            return ""
        # A special token has no text, and what follows it would lose its space as at the beginning of a text.
        self._before, self._pending = self._pending if piece else [*self._before, *self._pending], []
        return self._release(self._held + piece)

    def flush(self) -> str:
        """The end of the answer: everything that was held back."""
        rest = self._held + (self._decoded() if self._pending else "")
        self._pending.clear()
        self._held = ""
        if self.stopped:
            return ""
        self.text += rest
        return rest

    def _decoded(self) -> str:
        """Text of the pending tokens; SentencePiece drops a leading space, so they are read behind the last ones."""
        if not self._before or not self._tokenizer.opens_with_space:
            return self._tokenizer.decode(self._pending)
        whole = self._tokenizer.decode([*self._before, *self._pending])
        return whole[len(self._tokenizer.decode(self._before)) :]

    def _release(self, text: str) -> str:
        """Show `text` up to a stop string, or up to what might become one."""
        ends = [place for s in self._stop if (place := text.find(s)) >= 0]
        if ends:
            self.stopped = True
            shown, self._held = text[: min(ends)], ""
        else:
            keep = max((_overlap(text, s) for s in self._stop), default=0)
            shown, self._held = text[: len(text) - keep], text[len(text) - keep :]
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
