"""The error tree of the model and its formats, drawn once.

Memory3Error                 root of everything this project raises on purpose
  InvalidInput               a caller's value is wrong: shape, NaN, empty, too large
    UnknownTemplate          the chat template is none, or cannot render the conversation
    EmptyConversation        there is no message to answer
    UnknownRole              the role of a message is not system, user or assistant
  MissingFile                a file that a command would make is not there; the message names the command
  CorruptFile                bytes do not match their format or manifest (truncated, changed)
  IdentityMismatch           written by something else than what would read it; the message names both
    ModelMismatch            ... by another model or tokenizer
    CodecMismatch            ... by another codec
    FormatMismatch           ... with another memory budget or format version
    EmbedderMismatch         ... with another embedder
    BaseMismatch             an adapter or a model folder is of other base weights
"""

from __future__ import annotations

import copyreg
import re
from typing import Any


class Memory3Error(Exception):
    """Root of all errors this project raises on purpose.

    reason: a stable name that a program can test, the class's in capitals where it gives no other.
    """

    reason: str = ""

    def __init_subclass__(cls) -> None:
        if "reason" not in vars(cls):
            cls.reason = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, whose arguments args does not have: a process pool breaks on an error that it cannot read.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class InvalidInput(Memory3Error, ValueError):
    """A caller's value is wrong; the message gives the expected and the actual value."""

    reason = "INVALID_VALUE"


class UnknownTemplate(InvalidInput):
    """The chat template is none, refuses the conversation or leaves out a message of it."""


class EmptyConversation(InvalidInput):
    """A conversation without a message."""


class UnknownRole(InvalidInput):
    """A message's role is not system, user or assistant; the message names its number."""


class MissingFile(Memory3Error, FileNotFoundError):
    """A required file does not exist; the message names the command that makes it."""


class CorruptFile(Memory3Error):
    """A file's or a payload's bytes do not match its format or manifest."""


class IdentityMismatch(Memory3Error):
    """Something was written by another model, codec or format than the one that would read it."""

    subject, what = "memory was written by", "identity"

    def __init__(self, found: str, expected: str, remedy: str, *, subject: str = "") -> None:
        """The error that names the `found` and the `expected` identity and the `remedy`.

        subject: what was read, instead of "memory was written by".
        """
        self.found = found
        self.expected = expected
        super().__init__(f"{subject or self.subject} {self.what} {found[:12]}…, not {expected[:12]}…: {remedy}")


class ModelMismatch(IdentityMismatch):
    """The memory was written by another model or tokenizer."""

    what = "model"


class CodecMismatch(IdentityMismatch):
    """The memory was compressed by another codec."""

    what = "codec"


class FormatMismatch(IdentityMismatch):
    """The memory has another budget of heads and tokens, or another format version."""

    what = "memory format"


class EmbedderMismatch(IdentityMismatch):
    """The reference vectors were made by another embedder."""

    what = "embedder"


class BaseMismatch(IdentityMismatch):
    """An adapter or a model folder is of other base weights."""

    subject, what = "the adapter was tuned from", "base weights"


def shortened(text: str, most: int = 200) -> str:
    """For messages: what was given, such as a key; of a longer one its beginning, and how long it is."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
