"""RTF: letters of every encoding, what stands apart from the text, and no signs of emphasis."""

from pathlib import Path

import pytest

from tests.memory3.formats.reading import read


def test_emphasis_in_rtf_leaves_no_signs(tmp_path: Path) -> None:
    text = r"{\rtf1\ansi {\b Lost\b0} cheques{\b .} You {\i1 report\i0 } {\strike old} C:\\b {\bullet} x\par}"
    (tmp_path / "a.rtf").write_text(text)
    assert read(tmp_path / "a.rtf").text == "Lost cheques. You report old C:\\b • x"


def test_rtf_has_what_stands_apart_from_its_text_and_counts_its_pictures(tmp_path: Path) -> None:
    box = r"{\shp{\*\shpinst{\sp{\sn t}{\sv 1}}{\shptxt \pard Call Ida\par}}{\shprslt{\*\do{\dptxbxtext Call Ida}}}}"
    old = r"{\*\do\dobx{\dptxbxtext\pard or Ole{\*\annotation Why?}\par}}"
    comment = r"{\*\atnid I}\chatn{\*\annotation{\*\atnref 1}\pard\plain {\cs1 Ask \{him\}}}"
    picture = rb"{\*\shppict{\pict\bin3 }\}}}{\nonshppict{\pict 00}}{\object{\*\objdata 01}{\result{\pict 00}}}"
    text = rf"Rent{box}{old}{comment} is {{\v not}} 700{{\xe {{\v Index}}}} in __init__\par "
    (tmp_path / "a.rtf").write_bytes(rb"{\rtf1\ansi " + picture + text.encode() + rb"End\par}")
    document = read(tmp_path / "a.rtf")
    apart = ["Text box: Call Ida", "Text box: or Ole", "Comment: Why?", "Comment: Ask {him}"]
    assert document.text.split("\n\n") == ["Rent is not 700 in __init__", "End", *apart]
    assert document.notes == ("2 pictures in it not read", "1 embedded file in it not read")


def test_rtf_has_the_numbers_of_items_and_the_choices_in_forms_that_people_see(tmp_path: Path) -> None:
    def item(number: str, text: str, kind: str = "list") -> str:
        return rf"{{{{\{kind}text\pard\plain\f0 {number}\tab}}}}\pard\ls1 {{\cf1 {text}}}\par "

    def field(kind: int, more: str) -> str:
        cities = r"{\*\ffl Oslo}{\*\ffl Rome}"
        code = rf"{{\*\fldinst {{ FORM {{\*\formfield{{\fftype{kind}{more}\ffdefres1{cities}}}}}}}}}"
        return rf"{{\field{code}{{\fldrslt}}}}, "

    signs = item("2.", "Wash") + item("(b)", "Dry", "pn") + item(r"\'b7", "Eat") + item("o", "Go")
    choices = field(2, r"\ffres0") + field(2, r"\ffres25") + field(1, r"\ffres0") + field(1, "")
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi T\par {signs}{choices}end\par}}")
    lines = ["T", "2. Wash", "(b) Dry", "Eat", "Go", "Oslo, Rome, ☐, ☒, end"]
    assert read(tmp_path / "a.rtf").text.split("\n\n") == lines


def test_spaces_hyphens_and_breaks_of_rtf_that_are_commands_stay(tmp_path: Path) -> None:
    (tmp_path / "a.rtf").write_text(r"{\rtf1\ansi 10\~000 a\_b C:\\~x 5\emspace kg\page New\sect Last\par}")
    assert " ".join(read(tmp_path / "a.rtf").text.split()) == "10 000 a-b C:\\~x 5 kg New Last"


def test_letters_of_rtf_are_those_of_the_character_set_of_their_font(tmp_path: Path) -> None:
    fonts = r"{\fonttbl{\f0\fcharset0 A;}{\f1\fnil\fcharset204 B;}{\f2\fcharset128 C;}{\f3\fcharset238 D;}}"
    text = r"\'e9 \f1\'cc\'e8\'f0\f0 \'e9 {\f2\'83\'5d\'83\'8b} \'e9 {\f3\'b3\'f3d\'9f} "
    text += r"{\f1\u1052\'cc\u1080\'e8 {\plain\'e9} \\\'ec}"
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi\ansicpg1252\deff0{fonts}\pard {text}\par}}")
    assert read(tmp_path / "a.rtf").text == "é Мир é ゾル é łódź Ми é \\м"


@pytest.mark.parametrize(
    ("head", "letter"),
    [
        (r"\mac", r"\'8e"),
        (r"\mac\ansicpg10000", r"\'8e"),
        (r"\pc", r"\'82"),
        (r"\pca", r"\'82"),
        (r"\ansi\ansicpg850", r"\'82"),
        (r"\ansi\ansicpg65001", r"\'c3\'a9"),
        (r"\ansi\ansicpg1", r"\'e9"),
    ],
)
def test_letters_of_rtf_are_those_of_the_encoding_of_the_file(head: str, letter: str, tmp_path: Path) -> None:
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1{head}{{\info{{\title Zo {letter}}}}}\pard lanc{letter} ses\par}}")
    document = read(tmp_path / "a.rtf")
    assert (document.title, document.text) == ("Zo é", "lancé ses")


def test_a_font_of_rtf_keeps_its_character_set_in_a_file_of_another_encoding(tmp_path: Path) -> None:
    font = r"{\fonttbl{\f0\fcharset0 A;}}"
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\mac\deff1{font}\pard lanc\'8e {{\f0 lanc\'e9}} lanc\'8e\par}}")
    assert read(tmp_path / "a.rtf").text == "lancé lancé lancé"


def test_emphasis_of_a_part_of_a_word_in_rtf_leaves_no_signs(tmp_path: Path) -> None:
    (tmp_path / "a.rtf").write_text(r"{\rtf1\ansi {\ul S}erre {\b P}rod {\i Q}uick {\strike w}eg\par}")
    assert read(tmp_path / "a.rtf").text == "Serre Prod Quick weg"


@pytest.mark.parametrize("font", ["", r"{\fonttbl{\f0\fcharset204 A;}}"])
def test_a_title_of_rtf_is_its_text(font: str, tmp_path: Path) -> None:
    info = r"{\info{\title \'cc\'e8\'f0 a_b \u8364? {x}}}"
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi\ansicpg1251\deff0{font}{info}\pard Text\par}}")
    assert read(tmp_path / "a.rtf").title == "Мир a_b € x"


def test_fonts_of_rtf_with_many_properties_cost_no_time(tmp_path: Path) -> None:
    properties = r"\a " * 200
    (tmp_path / "a.rtf").write_text(rf"{{\rtf1\ansi{{\fonttbl{{\f1{properties}A;}}}}Text\par}}")
    assert read(tmp_path / "a.rtf").text == "Text"
