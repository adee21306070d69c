"""Answers of `edge-client serve`, whole and streamed: what they hold, tools, schemas, and fields that it lacks."""

import json
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from edge_client.model import EdgeModel
from edge_client.recall.outcome import MemoryRead
from edge_client.serve import completions
from edge_client.serve.requests import CompletionRequest, MemoryOptions
from edge_client.stream import Finished, Span, Statistics
from memory3.files.bundle import Bundle
from testing.processes import AppProcess
from tests.edge_client.conftest import TEXTS
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MESSAGES, MODEL, QUESTION, call, post

TOWN: dict[str, Any] = {
    "$defs": {"Town": {"enum": ["Oslo", "Lima"]}},
    "type": "object",
    "properties": {"town": {"$ref": "#/$defs/Town"}},
    "required": ["town"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in (("weather", TOWN), ("now", NOTHING))
]


def test_unknown_fields_are_ignored_and_named_and_null_is_as_nothing(server: AppProcess) -> None:
    message = {"role": "user", "content": "x", "name": "me"}
    fields = {"store": True, "metadata": {"a": "b"}, "tools": TOOLS, "temperature": None, "stop": None}
    reply = post(server, {"messages": [message], "max_tokens": 2, "model": "gpt-4o", **fields})
    assert reply.status == 200
    assert reply.headers["x-ignored-fields"] == "store, metadata, messages.name, tools"
    assert reply.json()["model"] == MODEL
    assert "x-ignored-fields" not in post(server, {"messages": MESSAGES, "max_tokens": 2}).headers


def test_null_is_as_nothing_within_tools_calls_and_memory(server: AppProcess) -> None:
    function = {"name": "now", "description": None, "parameters": None, "arguments": None}
    custom = {"name": "note", "format": None}
    called = {"id": "1", "type": "function", "function": {"name": "now", "arguments": None}, "custom": None}
    body = {
        "messages": [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [called]}, *MESSAGES],
        "tools": [{"type": "function", "function": function}, {"type": "custom", "custom": custom}],
        "memory": {"mode": None, "knowledge_base": None, "texts": None, "citations": None, "document": None},
        "max_tokens": 2,
    }
    assert post(server, body).status == 200
    search = {"type": "web_search", "name": None, "format": None}
    tools = [{"type": "function", "format": None, **function}, {"type": "custom", **custom}, search]
    response = {"input": "x", "tools": tools, "memory": {"texts": None}, "max_output_tokens": 2}
    assert call(server.port, "POST", "/v1/responses", json.dumps(response)).status == 200


def test_a_begun_answer_goes_on_where_it_was_cut(client: OpenAI) -> None:
    def said(messages: list[Any], max_tokens: int) -> tuple[str, int]:
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=max_tokens, extra_body={"memory": {"mode": "off"}}
        )
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        return answer.choices[0].message.content or "", (details.cached_tokens or 0) if details else 0

    whole, _ = said(MESSAGES, 20)
    begun, _ = said(MESSAGES, 9)
    rest, cached = said([*MESSAGES, {"role": "assistant", "content": begun}], 11)
    assert begun + rest == whole
    assert cached > 9


def test_a_conversation_with_tools_and_null_content_is_read(client: OpenAI) -> None:
    call: Any = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Oslo"}'}}
    messages: list[Any] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    answer = client.chat.completions.create(model="any", messages=messages, tools=TOOLS, max_tokens=4)
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


WEATHER = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    "choice",
    ["required", WEATHER, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER]}}],
)
def test_a_call_that_is_demanded_satisfies_its_schema_whole_and_streamed(client: OpenAI, choice: Any) -> None:
    wanted: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice}
    whole = client.chat.completions.create(**wanted).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    [call] = whole.message.tool_calls
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        assert arguments["town"] in ("Oslo", "Lima")
    else:
        assert (choice, call.function.name, arguments) == ("required", "now", {})
    with client.chat.completions.stream(**wanted) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls[0].function.name == call.function.name
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments


def test_where_allowed_tools_may_be_left_uncalled_the_answer_is_text(server: AppProcess) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER]}}
    answer = post(server, {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": 4})
    assert answer.json()["choices"][0]["message"]["content"]
    assert answer.headers["x-ignored-fields"] == "tools"


class City(BaseModel):
    name: Literal["Oslo", "Lima"]
    coastal: bool


def test_the_official_client_parses_an_answer_into_a_class_and_names_what_is_wrong(client: OpenAI) -> None:
    found = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=City)
    assert isinstance(found.choices[0].message.parsed, City)
    broken: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objec"}}}
    with pytest.raises(openai.BadRequestError, match="schema"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=broken)


async def test_the_asynchronous_client_answers_whole_and_streamed(server: AppProcess) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8)
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


# `edge-client serve` as a real process: what answers hold. The official client's view is in test_compatibility.


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
        model=MODEL,
        messages=MESSAGES,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"memory": {"texts": True}},
    ) as stream:
        chunks = [chunk.model_dump() for chunk in stream]
    pieces = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(piece["content"] or "" for piece in pieces) == said(asked(server, max_tokens=20))
    assert pieces[0]["role"] == "assistant"
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    told = [told for chunk in chunks for told in chunk.get("memory", {}).get("chunks", [])]
    generated = [one["generated"] for one in told]
    assert generated == sorted(generated), "the prompt's chunks first"
    assert set(generated) == {False, True}
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
        "type": "object",
        "additionalProperties": False,
        "required": ["city", "ok"],
        "properties": {"city": {"enum": ["Oslo", "Lima"]}, "ok": {"type": "boolean"}},
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    answer = asked(server, max_tokens=80, response_format=wanted)
    found = json.loads(said(answer))
    assert found["city"] in ("Oslo", "Lima")
    assert isinstance(found["ok"], bool)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["memory"]["refused"] is False
    wanted["json_schema"] = {"name": "unknown", "schema": {"const": "I don't know."}}
    assert asked(server, max_tokens=80, response_format=wanted)["memory"]["refused"] is True


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 1, "uniqueItems": True}, "uniqueItems"),
        ({"const": 1, "not": {"type": "string"}}, "not"),
        ({"enum": ["a"], "propertyNames": {"type": "string"}, "type": ["object", "string"]}, "propertyNames"),
        ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b"]}]}, "oneOf"),
        ({"type": "string", "format": "password", "maxLength": 2}, "password"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_enforced_of_a_schema_is_ignored_and_refused_where_it_is_strict(
    server: AppProcess, form: dict[str, Any], named: str
) -> None:
    schema = {"type": "object", "properties": {"x": form}, "required": ["x"], "additionalProperties": False}
    function = {"name": "f", "parameters": schema}
    chat = ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 80})
    response = ("/v1/responses", {"input": QUESTION, "max_output_tokens": 80})
    for strict in (False, True):
        strictly = {"strict": True} if strict else {}
        for (path, body), fields in (
            (chat, {"response_format": {"type": "json_schema", "json_schema": {"schema": schema, **strictly}}}),
            (chat, {"tools": [{"function": {**function, **strictly}}], "tool_choice": "required"}),
            (response, {"text": {"format": {"type": "json_schema", "schema": schema, **strictly}}}),
            (response, {"tools": [{"type": "function", **function, **strictly}], "tool_choice": "required"}),
        ):
            reply = call(server.port, "POST", path, json.dumps({**body, **fields}))
            assert reply.status == (400 if strict else 200), reply.text
            if strict:
                assert "strict: without it, what cannot be enforced is ignored" in reply.json()["error"]["message"]
                assert named in reply.json()["error"]["message"]


def test_completions_go_on_with_the_text_as_it_is(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="The code of Lima", max_tokens=9)
    with client.completions.create(model=MODEL, prompt="The code of Lima", max_tokens=9, stream=True) as stream:
        assert "".join(c.choices[0].text for c in stream if c.choices) == whole.choices[0].text


def test_an_echoed_completion_begins_with_its_text(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "The code of Lima", "max_tokens": 9}
    plain = client.completions.create(**asked).choices[0].text
    assert client.completions.create(**asked, echo=True).choices[0].text == f"The code of Lima{plain}"
    with client.completions.create(**asked, echo=True, stream=True) as stream:
        assert "".join(c.choices[0].text for c in stream if c.choices) == f"The code of Lima{plain}"


def test_citations_of_an_echoed_completion_count_its_text(tiny: Bundle) -> None:
    read = MemoryRead(1, "a.md", "Lima", 0, 0.5, "Lima\n4711")
    finished = Finished(" is 4711", "stop", Statistics(), False, spans=(Span(4, 8, read, 0.3),))
    body = CompletionRequest(prompt="The code", echo=True, memory=MemoryOptions(citations=True))
    choice = completions._Text(body, tiny).message(finished)
    (found,) = choice["annotations"]
    assert choice["text"][found["start_index"] : found["end_index"]] == found["text"] == "4711"


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
