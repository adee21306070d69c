"""`edge-client serve` as a real process, called with the official client: what answers hold."""

from __future__ import annotations

import json

import openai
import pytest
from openai import OpenAI

from deploy.processes import AppProcess
from edge_client.model import EdgeModel
from memory_model.bundle import Bundle
from tests.edge_client.conftest import TEXTS
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MESSAGES, MODEL, QUESTION, call


def test_a_chat_answers_as_the_sdk_does_with_provenance_and_timings(
    client: OpenAI, tiny: Bundle, memories: FakeService
) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20)
    with EdgeModel.open(tiny.folder, memories.address, memory="exact", deadline_s=20) as model:
        expected = [*model.generate(QUESTION, max_tokens=20)][-1]
    assert answer.choices[0].message.content == expected.text  # type: ignore[union-attr]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    more = answer.model_extra or {}
    assert not more["memory"]["without_memory"]
    read = more["memory"]["chunks"][0]["read"]
    assert len(read) == 5
    assert read[0]["document_key"].startswith("doc-")
    assert "text" not in read[0]
    assert more["timings"]["first_token_ms"] > 0


def test_a_stream_says_the_same_piece_by_piece_and_counts_at_its_end(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20)
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=20, stream=True, stream_options={"include_usage": True},
        extra_body={"memory": {"texts": True}},
    ) as stream:  # fmt: skip
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    told = [
        c.model_extra["memory"]["chunks"][0]
        for c in chunks
        if "chunks" in (c.model_extra or {}).get("memory", {})
    ]
    assert next(t["generated"] for t in told) is False
    assert any(t["generated"] for t in told)
    assert told[0]["read"][0]["text"] in TEXTS
    assert told[0]["state"] in ("fetched", "held")


def test_without_memory_nothing_is_asked_for(client: OpenAI, memories: FakeService) -> None:
    before = len(memories.requests)
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, extra_body={"memory": {"mode": "off"}}
    )
    assert answer.model_extra is not None
    assert answer.model_extra["memory"] == {"without_memory": False, "refused": False, "chunks": []}
    assert len(memories.requests) == before


def test_a_request_may_name_a_knowledge_base_or_several(client: OpenAI, memories: FakeService) -> None:
    before = len(memories.requests)
    client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, extra_body={"memory": {"knowledge_base": "atlas"}}
    )
    assert {r.knowledge_base for r in memories.requests[before:]} == {"atlas"}
    before = len(memories.requests)
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, extra_body={"memory": {"knowledge_base": "towns,atlas"}}
    )
    assert {r.knowledge_base for r in memories.requests[before:]} == {"atlas", "towns"}
    chunk = (answer.model_extra or {})["memory"]["chunks"][0]
    assert chunk["read"]
    assert {read["knowledge_base"] for read in chunk["read"]} <= {"atlas", "towns"}


def test_stop_seed_and_logprobs(client: OpenAI) -> None:
    def drawn(seed: int) -> str:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=24, temperature=1.5, seed=seed
        )
        return answer.choices[0].message.content or ""

    assert drawn(1) == drawn(1) != drawn(2)
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 6
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in logprobs.content)
    text = answer.choices[0].message.content or ""
    stop = text[2:4]
    cut = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6, stop=stop)
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_json_of_a_schema_comes_even_from_random_weights(client: OpenAI) -> None:
    schema = {
        "type": "object", "additionalProperties": False, "required": ["city", "ok"],
        "properties": {"city": {"enum": ["Oslo", "Lima"]}, "ok": {"type": "boolean"}},
    }  # fmt: skip
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=80,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )  # fmt: skip
    found = json.loads(answer.choices[0].message.content or "")
    assert found["city"] in ("Oslo", "Lima")
    assert isinstance(found["ok"], bool)
    assert answer.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="schema"):
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objec"}}},
        )  # fmt: skip


def test_completions_go_on_with_the_text_as_it_is(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="The code of Lima", max_tokens=9)
    with client.completions.create(
        model=MODEL, prompt="The code of Lima", max_tokens=9, stream=True
    ) as stream:
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
