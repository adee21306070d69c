"""Which of an answer's words stand in what was read."""

import time
import unicodedata

import pytest

from memory3.errors import InvalidInput
from memory3.text.verdict import Grounding, words_found

NOTE = "Router Lyra\nPassword: kite-55. Guests are cut off at 22:00."


@pytest.mark.parametrize(
    ("answer", "found"),
    [("kite-55", 1.0), ("The password of Lyra is Kite-56.", 0.5), ("swordfish", 0.0), ("Lyra", None), ("", None)],
)
def test_words_of_the_question_are_no_evidence(answer: str, found: float | None) -> None:
    assert words_found(answer, "What is the password of Lyra?", [NOTE]) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [("No.", None), ("Yes", None), ("是", None), ("No, kite-55.", 1.0), ("No, swordfish.", 0.0), ("not cut off", 1.0)],
)
def test_a_yes_or_no_is_no_evidence(answer: str, found: float | None) -> None:
    text = f"{NOTE} No visitors, yes?"
    assert words_found(answer, "Is the password of Lyra known?", [text]) == found


def test_composed_and_decomposed_letters_are_the_same() -> None:
    assert words_found("im Büro", "Wo?", [unicodedata.normalize("NFD", "Sie hängen im Büro.")]) == 1.0


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert words_found("密码是风筝", "密码是什么？", ["风筝"]) == 1.0
    assert words_found("กรุงเทพ", "ที่ไหน", ["สำนักงานอยู่ในกรุงเทพมหานคร"]) == 1.0
    assert words_found("ภูเก็ต", "ที่ไหน", ["สำนักงานอยู่ในกรุงเทพมหานคร"]) == 0.0


def test_a_number_between_characters_that_are_words_is_one_word() -> None:
    assert words_found("1995年", "什么时候建的？", ["大桥建于1995年。"]) == 1.0
    assert words_found("333", "高さは？", ["東京タワーは333メートル"]) == 1.0
    assert words_found("531", "高さは？", ["東京タワーは135メートル"]) == 0.0


def test_vowels_that_are_marks_are_part_of_a_word() -> None:
    assert words_found("नीला", "दरवाज़ा?", ["दरवाज़ा नीला है।"]) == 1.0
    assert words_found("नीला", "दरवाज़ा?", ["दरवाज़ा लाल है, नल बंद है।"]) == 0.0


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("20 minutes", "Puncture repair: 20 min"),
        ("20 min", "A puncture repair takes 20 minutes."),
        ("20 minutes", "Puncture repair: 20min."),
        ("2 hours", "Repair: 2 h"),
        ("185 degrees", "Oven: 185 °C"),
        ("185 degrees Celsius", "Oven: 185°C"),
        ("118.00 euros", "Total: 118.00 EUR"),
        ("118.00 euros", "Total: €118.00"),
        ("€118.00", "Total: 118.00 euros"),
        ("5 kilometers", "Way: 5 km"),
        ("until 28 August", "Open until 28 Aug"),
        ("from Monday", "Open from Mon to Fri"),
        ("closed, with two keys", "They close it with two boxes and a key"),
        ("euros", "Currency: EUR"),
        ("Anna Berg", "Berg, Anna"),
        ("1,200,000 people", "1200000 people"),
        ("1200 crowns", "Price: 1.200 crowns"),
        ("page 200", "pages 100,200"),
        ("118 euros", "Total: €118.00"),
        ("May 12", "Signed: 2024-05-12"),
        ("3 Jan", "Signed: 03.01.2025"),
        ("8 a.m.", "Open from 8am"),
        ("the USA", "From the U.S.A."),
        ("1200 crowns", "Price: 1 200 crowns"),
        ("room 102", "rooms 101 102 103"),
        ("185 °C", "Oven: １８５℃"),
        ("5 kg", "Weight: 5㎏"),
        ("2,5 kg", "Weight: 2.50kg"),
        ("1.234,50 euros", "Total: 1,234.50 EUR"),
        ("14:30", "Logged at 14:30:05"),
        ("12.05.2024", "Signed: 2024-05-12"),
        ("5.2", "See section 5.2.1"),
        ("Twelve rooms", "Rooms: 12"),
        ("12 rooms", "It has twelve rooms."),
        ("two h", "It lasts two hours."),
        ("on the 12th", "on the 12 May"),
    ],
)
def test_abbreviations_and_endings_are_found(answer: str, text: str) -> None:
    assert words_found(answer, "How long, how hot, how much, or when?", [text]) == 1.0


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("30 minutes", "Puncture repair: 20 min", 0.0),
        ("20 hours", "Puncture repair: 20 min", 0.5),
        ("5 minutes", "min. 5 persons", 0.5),
        ("12 seconds", "It's 12", 0.5),
        ("180 degrees", "Oven: 185 °C", 0.0),
        ("€30.00", "Rent: €45.00 a month", 0.0),
        ("118.00 dollars", "Total: 118.00 EUR", 0.5),
        ("kite-56", "Password: kite-55", 0.5),
        ("Annas", "Guest: Anna", 0.0),
        ("Marc", "Open in March", 0.0),
        ("car", "The carpet is red", 0.0),
        ("evening", "even the cellar", 0.0),
        ("B1", "Shelf: B12", 0.0),
        ("28 September", "until 28 Aug", 0.5),
        ("4.20 euros", "Room 4 costs 20 euros.", 0.0),
        ("5 km", "Way: 3.5 km", 0.0),
        ("3.5 kg", "Weight: 5.3 kg", 0.0),
        ("twelve", "Rooms: 13", 0.0),
        ("12 June", "Signed: 2024-05-12", 0.5),
        ("8 p.m.", "Open from 8 a.m.", 0.5),
        ("20:15", "Open from 15:00 to 20:00", 0.0),
    ],
)
def test_inventions_are_not_found(answer: str, text: str, found: float) -> None:
    assert words_found(answer, "How long, how hot, how much, who, or where?", [text]) == pytest.approx(found)


@pytest.mark.parametrize("values", [{"words": 0}, {"words": 1.5}, {"share": -1}, {"share": True}])
def test_thresholds_are_shares(values: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(values))):
        Grounding(**values)


def test_words_of_a_columns_name_are_found_one_by_one() -> None:
    row = "Tarn Tour\nmodel: Tarn Tour; price_eur: 820; weight_kg: 11; in_stock: 4"
    assert words_found("820 euros", "What does the Tarn Tour cost?", [row]) == 1
    assert words_found("11 kg", "How heavy is the Tarn Tour?", [row]) == 1
    assert words_found("order_id 7", "What is it?", ["order id: 7"]) == 1


def test_a_long_run_of_digits_is_read_once() -> None:
    begun = time.process_time()
    assert words_found("12", "How many?", ["1" * 30_000]) == 0.0
    assert time.process_time() - begun < 5, "reading it anew from each digit on takes half a minute"
