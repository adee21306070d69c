"""Text and numbers that storage engines are known to mistreat, and documents made of them."""

import random
from collections.abc import Mapping

from protos.memory.v1 import ingestion_pb2

TEXTS: Mapping[str, str] = {
    "NUL at the end": "Adobe PSL 1.3e for Canon\0",
    "NUL inside": "a\0b",
    "NUL alone": "\0",
    "control characters": "\x01\x02\x1f\x7f\x80\x9f",
    "noncharacters": "\ufdd0\ufffe\uffff\U0001ffff\U0010ffff",
    "zero width": "\u200b\u200c\u200d\u2060\ufeff",
    "byte order mark": "\ufeffvalue",
    "around the surrogates": "\ud7ff\ue000",
    "right to left": "\u202eabc\u202c",
    "combined": "e\u0301",
    "composed": "é",
    "line breaks": "a\r\nb\rc\nd\u2028e\u2029f\x85g",
    "quotes": "'\"`\\'' \\x27 \\0 \\u0000",
    "templates": "{f0:String} $vector$ %s %(x)s ?1 :name",
    "patterns": "% _ * [a-z] \\% ^$",
    "words of SQL": "NULL",
    "blanks around": " \t value \t ",
    "empty": "",
}
NUMBERS = [
    *[
        "0",
        "-0",
        "+0",
        "1",
        "-1",
        "+1",
        "007",
        ".5",
        "5.",
        "+.5e+3",
        "1e5",
        "1E5",
        "1e-5",
        "0.1",
        "0.30000000000000004",
        "9007199254740991",
        "9007199254740992",
        "9007199254740993",
        "-9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "2.2250738585072011e-308",
        "2.2250738585072014e-308",
        "4.9406564584124654e-324",
        "2e-324",
        "1e-400",
        "1.7976931348623157e308",
        "1.7976931348623159e308",
        "1e309",
        "-1e309",
        "1e99999999999999999999",
        "1e-99999999999999999999",
        "nan",
        "NaN",
        "inf",
        "-Infinity",
        "1_0",
        "0x1p3",
        "1e",
        "e5",
        "1e+",
        "+",
        "-",
        ".",
        "1.2.3",
        "1,5",
        "２",
        "１２",
        "١٢",
        "½",
        "Ⅷ",
    ],
    " 12",
    "12 ",
    "12\n",
    "\u00a012",
    "12\0",
    "0" * 400 + "7",
    "7" + "0" * 307,
    "1" * 400,
    "0." + "3" * 400,
]


def random_text(chance: random.Random, length: int) -> str:
    """Any characters that UTF-8 has, those of TEXTS more often than others."""
    known = "".join(TEXTS.values())
    made = []
    for _ in range(length):
        point = chance.choice((chance.randrange(0x80), chance.randrange(0x3000), chance.randrange(0x110000)))
        made.append(chance.choice(known) if 0xD800 <= point < 0xE000 or chance.random() < 0.3 else chr(point))
    return "".join(made)


def documents(chance: random.Random, count: int) -> list[ingestion_pb2.Document]:
    """One for each of TEXTS in all its fields, one for all NUMBERS, and `count` random ones; all are accepted."""
    made = [
        ingestion_pb2.Document(key=f"k{odd}", title=odd, text=f"Text {odd}.", metadata={odd: odd, f"n{odd}": "1"})
        for odd in TEXTS.values()
    ]
    made += [
        ingestion_pb2.Document(key=f"number {n}", text=f"Number {n}.", metadata={"number": number})
        for n, number in enumerate(NUMBERS)
    ]
    for n in range(count):
        metadata = {random_text(chance, 8): random_text(chance, chance.randrange(20)) for _ in range(5)}
        metadata["number"] = repr(chance.uniform(-1, 1) * 10.0 ** chance.randint(-320, 308))
        key, title = f"{random_text(chance, 4)}{n}", random_text(chance, 12)
        made.append(ingestion_pb2.Document(key=key, title=title, text=f"Random {n}.", metadata=metadata))
    wide = {f"name {n}": "v" * 4000 for n in range(64)}
    made.append(ingestion_pb2.Document(key="invisible", text=TEXTS["zero width"]))
    made.append(ingestion_pb2.Document(key="wide", title="t" * 200, text="Wide.", metadata=wide))
    made.append(ingestion_pb2.Document(key="k" * 1024, text="Long key.", metadata={"deep": "[" * 2000 + "]" * 2000}))
    return made
