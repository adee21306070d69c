"""Trees of named values as text: YAML, TOML, XML and JSON. A line for each value, "db.port: 5544"."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from memory3.formats.document import FileDocument, title_of
from memory3.formats.encoding import decode

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_METADATA_ENTRIES, _METADATA_BYTES = 16, 200
"""Of front matter: what is more or longer is only text."""
_DEEPEST = 40
_MOST_VALUES = 200_000
"""Of YAML with aliases, each of which stands for as many values as it names."""


def read_yaml(source: Path) -> Iterator[FileDocument]:
    """Values as they are written: `no` stays no. A file of several YAML documents is one."""
    return _read(source, parsed_yaml)


def read_toml(source: Path) -> Iterator[FileDocument]:
    """Dates in ISO 8601."""
    return _read(source, parsed_toml)


def read_json(source: Path) -> Iterator[FileDocument]:
    """One JSON value."""
    return _read(source, parsed_json)


def read_xml(source: Path) -> Iterator[FileDocument]:
    """Elements and attributes; an element with words and elements in it is its words."""
    return _read(source, parsed_xml)


def _read(source: Path, parse: Callable[[str], Any]) -> Iterator[FileDocument]:
    """The document of a tree; one that is not well-formed is its text, with a note."""
    read = decode(source.read_bytes())
    try:
        tree = parse(read.text)
        text, note = "\n".join(tree_lines(tree)), ""
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        text, note = read.text, f"not well-formed, read as plain text: {why}"
    title = title_of(source)
    if isinstance(tree_title := tree.get("title") if not note and isinstance(tree, Mapping) else "", str):
        title = tree_title or title
    yield FileDocument(str(source), str(source), title, text).noted(read.note, note)


class _YamlLoader(yaml.BaseLoader):
    """Reads values as text and keeps every value of a name."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The names and values of a mapping."""
        super().construct_mapping(node, deep)  # raises for a name that is no text
        return _collected((self.construct_object(name), self.construct_object(value)) for name, value in node.value)


def _collected(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A mapping of pairs; a name with several values has them as a list."""
    values: dict[Any, list[Any]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def parsed_yaml(text: str) -> Any:
    """A YAML file; values stay text. Raises ValueError."""
    try:
        documents = [one for one in yaml.load_all(text, Loader=_YamlLoader) if one not in (None, "")]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if "*" in text and _expanded(documents, {}) > _MOST_VALUES:
        raise ValueError(f"its aliases expand to more than {_MOST_VALUES:,} values")
    return documents[0] if len(documents) == 1 else documents


def _expanded(tree: Any, counted: dict[int, int]) -> int:
    """Values of a tree whose parts may be the same object in several places. counted: the values of each part."""
    if id(tree) in counted:
        return counted[id(tree)]
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    counted[id(tree)] = _MOST_VALUES + 1  # of a part that is in itself
    counted[id(tree)] = found = 1 + sum(_expanded(part, counted) for part in parts)
    return found


def parsed_json(text: str) -> Any:
    """One JSON value. Raises ValueError."""
    return json.loads(text, object_pairs_hook=_collected)


def parsed_toml(text: str) -> Any:
    """A TOML file. Raises ValueError."""
    return tomllib.loads(text)


def parsed_xml(text: str) -> Any:
    """An XML file as mappings, lists and strings. Raises ValueError."""
    try:
        root = ElementTree.fromstring(text.encode(), ElementTree.XMLParser(encoding="utf-8"))
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from error
    value = _element(root, 0)
    return value if isinstance(value, Mapping) else {_name(root.tag): value}


def _element(element: ElementTree.Element, depth: int) -> Any:
    children = [child for child in element if isinstance(child.tag, str)]
    text = " ".join((element.text or "").split())
    mixed = children and (text or any((child.tail or "").strip() for child in children))
    pairs: list[tuple[str, Any]] = [(_name(name), value) for name, value in element.attrib.items()]
    if mixed or depth > _DEEPEST:
        text = " ".join(" ".join(element.itertext()).split())
    else:
        pairs += ((_name(child.tag), _element(child, depth + 1)) for child in children)
    values = _collected(pairs)
    if not values:
        return text
    return {**values, **({"": text} if text else {})}


def _name(tag: str) -> str:
    return tag.rpartition("}")[2]


def tree_lines(tree: Any, path: str = "") -> list[str]:
    """A line for each value, `path` before it; mappings in a list are a line each, with their names and values."""
    if isinstance(tree, Mapping):
        lines = [line for name, value in tree.items() for line in tree_lines(value, _joined(path, str(name)))]
        empty = _without_value(tree)
        return [*lines, _line(path if not lines else f"{path} without a value".strip(), empty)] if empty else lines
    if isinstance(tree, Sequence) and not isinstance(tree, (str, bytes)):
        if not any(isinstance(item, (Mapping, list, tuple)) for item in tree):
            values = ", ".join(filter(None, map(shown, tree)))
            return [_line(path, values)] if values else []
        return [line for item in tree for line in _item_lines(item, path)]
    value = shown(tree)
    return [_line(path, value)] if value else []


def _item_lines(item: Any, path: str) -> list[str]:
    """One of a list; a mapping of values is one line, so that what belongs together is read together."""
    if not isinstance(item, Mapping):
        return tree_lines(item, path)
    flat = [(name, value) for name, value in item.items() if not _nested(value)]
    pairs = "; ".join(f"{name}: {_flat(value)}" if name else _flat(value) for name, value in flat if _flat(value))
    if empty := _without_value(item):
        pairs = f"{pairs}; without a value: {empty}" if pairs else empty
    lines = [f"{path} - {pairs}" if path else pairs] if pairs else []
    label = next((shown(value) for _, value in flat if shown(value)), "")
    inside = f"{path} {label}".strip()
    for name, value in item.items():
        if _nested(value):
            lines += tree_lines(value, _joined(inside, str(name)))
    return lines


def _without_value(tree: Mapping[Any, Any]) -> str:
    """The names without a value, which may be all that a file says."""
    return ", ".join(str(name) for name, value in tree.items() if not _nested(value) and not _flat(value))


def _nested(value: Any) -> bool:
    if isinstance(value, Mapping):
        return len(value) > 3 or any(isinstance(inner, (Mapping, list)) for inner in value.values())
    return isinstance(value, list) and any(isinstance(inner, (Mapping, list)) for inner in value)


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(inner)}".strip() for name, inner in value.items())
    return ", ".join(filter(None, map(shown, value))) if isinstance(value, list) else shown(value)


def shown(value: Any) -> str:
    """A value as its file writes it, on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return " ".join(str(value).split())


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _line(path: str, value: str) -> str:
    return f"{path}: {value}" if path else value


def metadata_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Fields as metadata, lists as "a, b"; nested and long ones, and more than 16, are left out."""
    plain = {n: v for n, v in fields.items() if not _nested(v) and not isinstance(v, Mapping)}
    flat = {name: _flat(value) for name, value in plain.items()}
    fitting = {n: v for n, v in flat.items() if v and len(n.encode()) + len(v.encode()) <= _METADATA_BYTES}
    return dict(list(fitting.items())[:_METADATA_ENTRIES])
