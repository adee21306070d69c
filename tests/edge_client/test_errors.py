"""The drawn list of errors is the real one, every error has a reason, and every public name is exported once."""

from __future__ import annotations

import inspect
import re
from typing import get_type_hints

import edge_client
from edge_client import errors
from edge_client.settings import EdgeOptions, EdgeSettings
from memory_model.errors import Memory3Error

DRAWN = re.findall(r"^      ([A-Z]\w+)  ", errors.__doc__ or "", re.M)


def test_the_public_errors_are_those_that_are_drawn() -> None:
    public = {
        name
        for name in edge_client.__all__
        if isinstance(kind := getattr(edge_client, name), type) and issubclass(kind, Exception)
    }
    assert public == {*DRAWN, "Memory3Error"}


def test_every_error_has_a_reason_that_its_line_names() -> None:
    for name in DRAWN:
        kind = getattr(edge_client, name)
        assert issubclass(kind, Memory3Error)
        if name != "IdentityMismatch":  # its leaves have one each
            assert kind.reason in (errors.__doc__ or ""), name


def test_the_public_names_are_exactly_the_exported_ones() -> None:
    public = {
        name for name, value in vars(edge_client).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }  # fmt: skip
    assert public == set(edge_client.__all__)
    assert edge_client.__all__ == sorted(edge_client.__all__)


def test_what_an_editor_completes_are_the_settings() -> None:
    assert {*get_type_hints(EdgeOptions), "bundle", "service"} == set(EdgeSettings.model_fields)
