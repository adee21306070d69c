"""Paragraphs with questions, as the data sets have them."""

from typing import Any


def paragraphs(article: str, count: int = 6, subject: str = "") -> list[dict[str, Any]]:
    """Short paragraphs with an answerable and an unanswerable question each, which name the subject if it is given."""
    of = f" of {subject}" if subject else ""
    return [
        {
            "article": article,
            "paragraph": f"The tower number {n} of {article} was built by Master{n}.",
            "questions": [
                {"question": f"Who built tower {n}{of}?", "answers": [f"Master{n}", f"by Master{n}", f"Master{n}"]},
                {"question": f"Who burnt tower {n}{of}?", "answers": [], "plausible": [f"Master{n}"]},
            ],
        }
        for n in range(count)
    ]
