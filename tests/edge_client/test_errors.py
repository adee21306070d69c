"""The drawn tree of errors is the real one, and every public name is exported once."""

from __future__ import annotations

import inspect
import re

import edge_client
from edge_client import errors
from memory_model.errors import Memory3Error


def drawn(text: str) -> dict[str, str]:
    """Name -> name of the one it is drawn under."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if found := re.match(r"^( +)([A-Z]\w+)(?:  |$)", line):
            depth, name = len(found[1]), found[2]
            path = [p for p in path if p[0] < depth]
            if path:
                parents[name] = path[-1][1]
            path.append((depth, name))
    return parents


def test_the_drawn_tree_is_complete_and_true() -> None:
    own = {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Memory3Error) and kind.__module__ == errors.__name__
    }
    tree = drawn(errors.__doc__ or "")
    assert set(own) <= set(tree), "errors.py draws every error that it defines"
    for name, parent in tree.items():
        kind = getattr(errors, name)
        assert kind.__bases__[0].__name__ == parent, f"{name} is drawn under {parent}"
        assert (kind.__doc__ or "").strip()


def test_every_error_of_the_client_is_public() -> None:
    kinds = [k for _, k in inspect.getmembers(errors, inspect.isclass) if k.__module__ == errors.__name__]
    assert {k.__name__ for k in kinds} <= set(edge_client.__all__)


def test_the_public_names_are_exactly_the_exported_ones() -> None:
    public = {
        name for name, value in vars(edge_client).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }  # fmt: skip
    assert public == set(edge_client.__all__)
    assert edge_client.__all__ == sorted(edge_client.__all__)
