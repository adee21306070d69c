"""Suggested questions: made of what is remembered, and shown only where the model has answered them."""

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead, Recall
from edge_client.serve import suggestions
from edge_client.serve.completions import Answering, Queue
from edge_client.serve.suggestions import Suggestion, in_turn, suggestion_routes, suggestions_of
from edge_client.settings import EdgeSettings
from edge_client.stream import Recalled, Result, Statistics
from memory3.files.bundle import Bundle
from tests.edge_client.fake_service import FakeService

CABIN = (
    "Cabin\nWireless password: reindeer-42\nIP address: 10.0.0.7\nIt lies in the wood."
    "\nA longer label that has many words: x"
)
ROOMS = "Oak\nroom: Oak; floor: 1\nroom: Elm; phone: 322"


def test_questions_are_made_of_labels_and_of_the_rows_of_tables() -> None:
    assert [(one.question, one.value) for one in suggestions_of("c", "Cabin", CABIN)] == [
        ("What is the wireless password of Cabin?", "reindeer-42"),
        ("What is the IP address of Cabin?", "10.0.0.7"),
        ("What is known about Cabin?", ""),
    ]
    assert [one.question for one in suggestions_of("r", "Oak", ROOMS)] == [
        "What is the floor of Oak?",
        "What is the phone of Elm?",
        "What is known about Oak?",
    ]


def test_lines_of_a_list_are_labels_too() -> None:
    text = "Router\n- Password: kite-55\n* **Address:** 10.0.0.1"
    assert [(one.question, one.value) for one in suggestions_of("r", "Router", text)][:-1] == [
        ("What is the password of Router?", "kite-55"),
        ("What is the address of Router?", "10.0.0.1"),
    ]


def test_documents_take_turns_and_those_without_a_question_in_the_list_go_first() -> None:
    suggested = set[str]()
    order = in_turn([[Suggestion(f"{key}{n}", key) for n in range(3)] for key in "ab"], suggested)
    assert [next(order).question for _ in range(2)] == ["a0", "b0"]
    suggested.add("a")
    assert [one.question for one in order] == ["b1", "b2", "a1", "a2"]


@pytest.mark.parametrize(
    ("answer", "value", "key", "refused", "kept"),
    [
        ("The password is Reindeer-42.", "reindeer-42", "c", False, True),
        ("The password is reindeer-43.", "reindeer-42", "c", False, False),
        ("reindeer-42", "reindeer-42", "other", False, False),
        ("reindeer-42", "reindeer-42", "c", True, False),
        ("The cabin lies in the wood.", "", "c", False, True),
        ("The cabin stands beside seventeen lakes.", "", "c", False, False),
        ("Cabin", "", "c", False, False),
    ],
)
def test_a_question_is_kept_if_the_answer_holds_what_its_document_says(
    answer: str, value: str, key: str, refused: bool, kept: bool
) -> None:
    read = (MemoryRead(1, key, "Cabin", 0, 0.5, CABIN),)
    recalls = (Recalled(0, False, Recall("", read=read)),)
    result = Result(answer, "end", Statistics(), without_memory=False, refused=refused, recalls=recalls)
    assert Suggestion("?", "c", value).answered_by(result) is kept


def test_a_list_is_made_once_while_nobody_waits_and_anew_when_the_documents_change(
    tiny: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answers(_: Any, suggestion: Suggestion) -> bool:
        asked.append(suggestion.question)
        return suggestion.value == "red"

    monkeypatch.setattr(suggestions, "_is_answered", answers)
    with EdgeModel.open(tiny.folder, offline=True) as model:
        answering, app = Answering(model, EdgeSettings(), Queue(1, 0)), FastAPI()
        app.include_router(suggestion_routes(answering))
        with TestClient(app) as client:

            def suggested() -> list[str]:
                found: list[str] = client.get("/v1/suggestions").json()["data"]
                return found

            assert suggested() == []
            model.remember("Colour: red", key="a", title="Pump")
            model.remember("Colour: blue", key="b", title="Lid")
            for _ in range(2):
                assert suggested() == ["What is the colour of Pump?"]
            known = [f"What is known about {name}?" for name in ("Lid", "Pump")]
            assert asked == ["What is the colour of Pump?", "What is the colour of Lid?", *known]
            model.forget("a")
            answering.queue.turn.acquire_nowait()
            assert suggested() == []
            answering.queue.turn.release()
            assert len(asked) == 4
            assert client.get("/v1/suggestions?knowledge_base=../x").status_code == 422


def test_a_model_that_answers_nothing_has_no_suggestions(tiny: Bundle) -> None:
    with EdgeModel.open(tiny.folder, offline=True) as model:  # its weights are random
        model.remember("Colour: red", key="a", title="Pump")
        (first, _) = suggestions._suggestions(model, "a", "Pump")
        assert first.question == "What is the colour of Pump?"
        assert not suggestions._is_answered(model, first)


def test_questions_about_documents_of_the_device_are_not_asked_of_the_service(
    tiny: Bundle, service: FakeService
) -> None:
    with EdgeModel.open(tiny.folder, service.address) as model:  # which lists no documents
        model.remember("Colour: red", key="a", title="Pump")
        app = FastAPI()
        app.include_router(suggestion_routes(Answering(model, EdgeSettings(), Queue(1, 0))))
        with TestClient(app) as client:
            assert client.get("/v1/suggestions").status_code == 200
        assert service.requests == []
        assert model.ask("Which colour?", max_tokens=1).recalls, "the model itself goes on with its service"
        assert service.requests != []
