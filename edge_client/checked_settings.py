"""Settings whose faults are one InvalidInput: which setting, its environment variable, and what to write."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsError

from memory_model.errors import InvalidInput

_LONGEST_SHOWN = 60
_WANTED = {
    "int_parsing": "a whole number", "int_type": "a whole number", "int_from_float": "a whole number",
    "float_parsing": "a number", "float_type": "a number",
    "bool_parsing": "true or false", "bool_type": "true or false",
    "string_type": "text", "string_too_short": "at least one character", "path_type": "a path",
    "greater_than": "more than {gt:g}", "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}", "less_than_equal": "at most {le:g}", "enum": "{expected}",
}  # fmt: skip
"""What a setting must be, by pydantic's name of the fault."""


class CheckedSettings(BaseSettings):
    """wanted: what settings must be whose type does not say it, by name."""

    wanted: ClassVar[dict[str, str]] = {}

    def __init__(self, **values: Any) -> None:
        """Keyword arguments before the environment before the defaults; raises InvalidInput."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidInput("; ".join(self._said(dict(problem)) for problem in error.errors())) from None
        except SettingsError as error:  # a list that is no JSON
            name = str(error).partition('"')[2].partition('"')[0]  # pydantic-settings says it nowhere else
            variable = f"{self.model_config.get('env_prefix', '')}{name.upper()}"
            raise InvalidInput(f'{variable} must be a JSON list, such as ["first", "second"]') from error

    @classmethod
    def _said(cls, problem: dict[str, Any]) -> str:
        name = str(problem["loc"][0]) if problem["loc"] else ""
        prefix = cls.model_config.get("env_prefix", "")
        if problem["type"] == "extra_forbidden":
            return f"there is no setting {name.lower()}; there are: {', '.join(cls.model_fields)}"
        setting = f"setting {name} ({prefix}{name.upper()})"
        wanted = cls.wanted.get(name) or _WANTED.get(problem["type"], "").format(**problem.get("ctx", {}))
        if not wanted:
            return f"{setting}: {str(problem['msg']).removeprefix('Value error, ')}"
        given = problem["input"]
        if isinstance(given, SecretStr) or "key" in name:
            return f"{setting} must be {wanted}"
        return f"{setting} must be {wanted}, not {repr(given)[:_LONGEST_SHOWN]}"
