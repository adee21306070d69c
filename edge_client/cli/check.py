"""`Check`: one line of `edge-client doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """What was looked at and what came out.

    ok: False where something does not work. fact: it only says what is, and is never wrong. advice: what to
    install or do, exactly; also where things work but could be faster.
    """

    what: str
    ok: bool
    detail: str
    fact: bool = False
    advice: str = ""
