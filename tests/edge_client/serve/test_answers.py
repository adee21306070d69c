"""`edge-client serve` as a real process: what answers hold. The official client's view is in test_compatibility."""

import json
from typing import Any

import pytest
from openai import OpenAI

from deploy.processes import AppProcess
from edge_client.model import EdgeModel
from memory_model.bundle import Bundle
from tests.edge_client.conftest import TEXTS
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MESSAGES, MODEL, QUESTION, call, post


def asked(server: AppProcess, **fields: Any) -> dict[str, Any]:
    """A whole answer to the question."""
    reply = post(server, {"messages": MESSAGES, **fields})
    assert reply.status == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def said(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_a_chat_answers_as_the_sdk_does_with_provenance_and_timings(
    server: AppProcess, tiny: Bundle, memories: FakeService
) -> None:
    answer = asked(server, max_tokens=20)
    with EdgeModel.open(tiny.folder, memories.address, memory="exact", deadline_s=20) as model:
        assert said(answer) == model.ask(QUESTION, max_tokens=20).text
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 20
    assert not answer["memory"]["without_memory"]
    read = answer["memory"]["chunks"][0]["read"]
    assert len(read) == 5
    assert read[0]["document_key"].startswith("doc-")
    assert "text" not in read[0]
    assert answer["timings"]["first_token_ms"] > 0


def test_a_stream_says_the_same_piece_by_piece_and_counts_at_its_end(server: AppProcess, client: OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=20, stream=True, stream_options={"include_usage": True},
        extra_body={"memory": {"texts": True}},
    ) as stream:  # fmt: skip
        chunks = [chunk.model_dump() for chunk in stream]
    pieces = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(piece["content"] or "" for piece in pieces) == said(asked(server, max_tokens=20))
    assert pieces[0]["role"] == "assistant"
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    told = [told for chunk in chunks for told in chunk.get("memory", {}).get("chunks", [])]
    assert [one["generated"] for one in told][:2] == [False, True]
    assert told[0]["read"][0]["text"] in TEXTS
    assert told[0]["state"] in ("fetched", "held")


@pytest.mark.parametrize(
    ("memory", "read"),
    [
        ({"mode": "off"}, set()),
        ({"knowledge_base": "atlas"}, {"atlas"}),
        ({"knowledge_base": "towns,atlas"}, {"atlas", "towns"}),
    ],
)
def test_a_request_chooses_what_is_read(
    server: AppProcess, memories: FakeService, memory: dict[str, str], read: set[str]
) -> None:
    before = len(memories.requests)
    answer = asked(server, max_tokens=2, memory=memory)["memory"]
    assert {request.knowledge_base for request in memories.requests[before:]} == read
    assert not answer["without_memory"]
    assert bool(answer["chunks"]) == bool(read)
    if len(read) == 2:
        assert {one["knowledge_base"] for one in answer["chunks"][0]["read"]} <= read


def test_stop_seed_and_logprobs(server: AppProcess) -> None:
    first, again, other = (asked(server, max_tokens=24, temperature=1.5, seed=seed) for seed in (1, 1, 2))
    assert said(first) == said(again) != said(other)
    answer = asked(server, max_tokens=6, logprobs=True, top_logprobs=3)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 6
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for entry in entries)
    text = said(answer)
    cut = asked(server, max_tokens=6, stop=text[2:4])
    assert said(cut) == text[: text.index(text[2:4])]
    assert cut["choices"][0]["finish_reason"] == "stop"


def test_json_of_a_schema_comes_even_from_random_weights(server: AppProcess) -> None:
    schema = {
        "type": "object", "additionalProperties": False, "required": ["city", "ok"],
        "properties": {"city": {"enum": ["Oslo", "Lima"]}, "ok": {"type": "boolean"}},
    }  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    answer = asked(server, max_tokens=80, response_format=wanted)
    found = json.loads(said(answer))
    assert found["city"] in ("Oslo", "Lima")
    assert isinstance(found["ok"], bool)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["memory"]["refused"] is False
    wanted["json_schema"] = {"name": "unknown", "schema": {"const": "I don't know."}}
    assert asked(server, max_tokens=80, response_format=wanted)["memory"]["refused"] is True


def test_completions_go_on_with_the_text_as_it_is(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="The code of Lima", max_tokens=9)
    with client.completions.create(model=MODEL, prompt="The code of Lima", max_tokens=9, stream=True) as stream:
        assert "".join(c.choices[0].text for c in stream if c.choices) == whole.choices[0].text


def test_models_and_embeddings(client: OpenAI, tiny: Bundle) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    found = client.embeddings.create(model=names[1], input=["Lima", "Rome"])  # base64 on the wire
    vectors = tiny.embedder().embed(["Lima", "Rome"])
    assert found.data[1].embedding == pytest.approx([float(x) for x in vectors[1]], abs=1e-6)


def test_health_tells_the_model_and_how_much_is_answered(server: AppProcess) -> None:
    health = call(server.port, "GET", "/health").json()
    assert health["status"] == "ok"
    assert health["model"]["chunk_tokens"] == 16
    assert health["answers"] == {"running": 0, "waiting": 0}
