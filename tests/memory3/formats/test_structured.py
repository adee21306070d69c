"""YAML, TOML, JSON and XML: a line for each value, with its path."""

from pathlib import Path

from tests.memory3.formats.reading import read


def test_aliases_that_multiply_are_not_expanded(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    document = read(tmp_path / "a.yaml")
    assert document.text == "\n".join(lines)
    assert "aliases expand to more than" in document.notes[0]


def test_trees_have_a_line_for_each_value_with_its_path(tmp_path: Path) -> None:
    yaml = "db:\n  port: 5544\n  tls: no\nusers:\n  - name: ada\n    role: admin\ntags: [a, b]\n"
    files = {
        "a.yaml": (yaml, ["db.port: 5544", "db.tls: no", "users - name: ada; role: admin", "tags: a, b"]),
        "a.toml": ('[pump]\nflow = "40 l/min"\nday = 2026-03-01\n', ["pump.flow: 40 l/min", "pump.day: 2026-03-01"]),
        "a.json": (
            '{"site": {"code": "K7", "open": true}, "n": [1, 2]}',
            ["site.code: K7", "site.open: true", "n: 1, 2"],
        ),
        "a.xml": (
            '<shop><item id="7"><name>Tea</name><price>3.20</price></item><item id="8"><name>Rye</name></item></shop>',
            ["item - id: 7; name: Tea; price: 3.20", "item - id: 8; name: Rye"],
        ),
    }
    for name, (text, lines) in files.items():
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name).text.split("\n") == lines


def test_names_without_a_value_and_all_values_of_a_name_are_kept(tmp_path: Path) -> None:
    files = {
        "a.yaml": (
            "flour:\n  white:\n  rye:\neggs: 12\nmilk:\nname: cake\nname: torte\ndo:\n- stir:\n- bake: 20\n  rest:\n",
            [
                "flour: white, rye",
                "eggs: 12",
                "name: cake, torte",
                "do - stir",
                "do - bake: 20; without a value: rest",
                "without a value: milk",
            ],
        ),
        "a.json": (
            '{"a": 1, "a": [2], "b": {"x": 1}, "b": {"x": 0, "y": null}, "c": [null], "d": false}',
            ["a: 1", "a: 2", "b - x: 1", "b - x: 0; without a value: y", "d: false", "without a value: c"],
        ),
        "a.xml": ("<a><milk/><eggs>12</eggs><eggs/></a>", ["eggs: 12", "without a value: milk"]),
        "a.md": ("---\ntitle: A\ntitle: B\ndraft:\n---\n", ["draft"]),
    }
    for name, (text, lines) in files.items():
        (tmp_path / name).write_text(text)
        assert read(tmp_path / name).text.split("\n") == lines
    assert read(tmp_path / "a.md").title == "A, B"


def test_trees_that_are_not_well_formed_are_their_text(tmp_path: Path) -> None:
    for name, text in (("a.yaml", "a: [1\nb: }"), ("a.toml", "a = ="), ("a.json", "{a}"), ("a.xml", "<a>1<b>")):
        (tmp_path / name).write_text(text)
        document = read(tmp_path / name)
        assert document.text == text
        assert document.notes[0].startswith("not well-formed, read as plain text: ")
