"""What clients of OpenAI's interface rely on beside the answers: special values, errors, methods, bytes."""

import gzip
import json
import re
from typing import Any

import pytest

from testing.processes import AppProcess
from tests.edge_client.http_calls import MESSAGES, call, post, refused

HALF = "cut\ud83d"
"""As JavaScript leaves it: the first half of a surrogate pair."""
TOOL: Any = {"type": "function", "function": {"name": HALF, "parameters": {"type": "object", "properties": {}}}}
LINES: Any = {"type": "json_schema", "name": "lines", "schema": {"const": "a\u2028b\u2029c\x85d"}}


def embedded(server: AppProcess, **fields: Any) -> Any:
    return call(server.port, "POST", "/v1/embeddings", json.dumps({"input": "Lima", **fields}))


def test_minus_one_is_random_off_and_unlimited(server: AppProcess) -> None:
    drawn = {
        post(server, {"messages": MESSAGES, "seed": -1, "top_k": -1, "temperature": 2, "max_tokens": 12}).json()[
            "choices"
        ][0]["message"]["content"]
        for _ in range(3)
    }
    assert len(drawn) > 1
    endless = post(server, {"messages": MESSAGES, "max_tokens": -1, "memory": {"mode": "off"}}).json()
    assert endless["choices"][0]["finish_reason"] in ("length", "stop")
    assert endless["usage"]["completion_tokens"] > 0
    same = [post(server, {"messages": MESSAGES, "seed": -7, "temperature": 2, "max_tokens": 8}) for _ in range(2)]
    assert same[0].json()["choices"] == same[1].json()["choices"]
    assert refused(post(server, {"messages": MESSAGES, "max_tokens": 0})) == (400, "invalid_value")


def test_a_body_in_chunks_is_read_up_to_the_limit(server: AppProcess) -> None:
    body = json.dumps({"messages": MESSAGES, "max_tokens": 1.0}).encode()
    reply = call(server.port, "POST", "/v1/chat/completions", iter([body[:9], body[9:]]))
    assert reply.status == 200, reply.text
    large = (b"x" * 65_536 for _ in range(17))
    assert refused(call(server.port, "POST", "/v1/chat/completions", large)) == (413, "body_too_large")
    assert call(server.port, "GET", "/health").status == 200


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("chat/completions", {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60}),
        ("responses", {"input": "x", "instructions": HALF, "metadata": {HALF: HALF}, "max_output_tokens": 1}),
        ("responses", {"input": "x", "instructions": HALF, "stream": True, "max_output_tokens": 1}),
        ("conversations", {"items": [{"role": "user", "content": HALF}]}),
        ("embeddings", {"input": HALF}),
    ],
)
def test_a_string_that_was_cut_within_a_character_is_read(server: AppProcess, route: str, body: Any) -> None:
    reply = call(server.port, "POST", f"/v1/{route}", json.dumps(body))
    assert reply.status == 200, reply.text
    if route == "conversations":
        items = call(server.port, "GET", f"/v1/conversations/{reply.json()['id']}/items").json()["data"]
        assert items[0]["content"][0]["text"] == "cut?"
    if body.get("stream"):
        assert "response.incomplete" in reply.text


@pytest.mark.parametrize(
    ("body", "headers", "error"),
    [
        (gzip.compress(b"{}"), {"Content-Encoding": "gzip"}, (415, "unsupported_encoding", "encoded as gzip")),
        (b'{"prompt": "\xff"}', {}, (400, "invalid_value", "can't decode byte 0xff")),
        (b'{"prompt": ' + b"[" * 100_000, {}, (400, "invalid_value", "recursion")),
        (b'{"seed": ' + b"9" * 5000 + b"}", {}, (400, "invalid_value", "4300 digits")),
    ],
    ids=["gzip", "latin-1", "nested", "digits"],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_cause(
    server: AppProcess, body: bytes, headers: dict[str, str], error: tuple[int, str, str]
) -> None:
    reply = call(server.port, "POST", "/v1/completions", body, **headers)
    status, code, said = error
    assert refused(reply) == (status, code)
    assert said in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "forms"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages.0.content",
            ("a valid string", "0.type: Input should be 'text'"),
        ),
        ({"stop": ["x"] * 17}, "stop", ("a valid string", "at most 16 items")),
        ({"max_tokens": 0}, "max_tokens", ("-1", "greater than or equal to 1")),
        ({"temperature": 2.1}, "temperature", ("less than or equal to 2",)),
        ({"messages": [{"content": "x"}]}, "messages.0.role", ("required",)),
    ],
)
def test_an_error_names_the_field_and_every_form_that_it_may_have(
    server: AppProcess, fields: dict[str, Any], param: str, forms: tuple[str, ...]
) -> None:
    error = post(server, {"messages": MESSAGES, **fields}).json()["error"]
    assert error["param"] == param
    assert all(form in error["message"] for form in forms), error["message"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}),
        ("chat/completions", {"messages": MESSAGES, "max_tokens": 0}),
        ("chat/completions", {"messages": MESSAGES, "tool_choice": {"type": "function", "name": "f"}}),
        ("completions", {"prompt": 5}),
        ("embeddings", {"input": [5]}),
        ("responses", {"input": [{"role": "tool", "content": "x"}]}),
        ("responses", {"input": "x", "tool_choice": {"type": "web_search"}}),
    ],
)
def test_an_error_speaks_of_json_and_not_of_the_types_of_a_program(
    server: AppProcess, route: str, body: dict[str, Any]
) -> None:
    error = call(server.port, "POST", f"/v1/{route}", json.dumps(body)).json()["error"]
    assert "has none of its forms: " in error["message"]
    assert not re.search(r"list\[|union|literal\[|constrained|function-after|\bstr\b", error["message"]), error[
        "message"
    ]


@pytest.mark.parametrize(
    ("route", "body"),
    [("chat/completions", {"messages": MESSAGES}), ("completions", {"prompt": "x"}), ("responses", {"input": "x"})],
)
def test_an_unknown_field_of_memory_is_refused_with_the_known_ones(
    server: AppProcess, route: str, body: dict[str, Any]
) -> None:
    error = call(server.port, "POST", f"/v1/{route}", json.dumps({**body, "memory": {"tekst": True}})).json()["error"]
    known = "mode, knowledge_base, texts, citations, only_documents, document"
    assert (error["param"], error["message"]) == ("memory.tekst", f"unknown field memory.tekst; known: {known}")


def test_an_unknown_field_of_a_correction_is_refused_with_the_known_one(server: AppProcess) -> None:
    place = "/v1/local/memories?key=a.txt&chunk_number=0"
    error = call(server.port, "PUT", place, json.dumps({"test": "x"})).json()["error"]
    assert (error["param"], error["message"]) == ("test", "unknown field test; known: text")


def test_two_prompts_are_refused_with_both_forms(server: AppProcess) -> None:
    error = call(server.port, "POST", "/v1/completions", '{"prompt": ["a", "b"]}').json()["error"]
    assert "a valid string" in error["message"]
    assert "at most 1 item" in error["message"]


def test_head_is_answered_where_get_is_and_other_methods_name_the_right_one(server: AppProcess) -> None:
    for path in ("/v1/models", "/health", "/", "/v1/local"):
        head = call(server.port, "HEAD", path)
        assert (head.status, head.body) == (200, b"")
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/embeddings", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PATCH", "/v1/local?key=a", "DELETE, GET, HEAD, POST"),
        ("POST", "/style.css", "GET, HEAD"),
    ):
        reply = call(server.port, method, path)
        assert refused(reply) == (405, "method_not_allowed"), path
        assert reply.headers["allow"] == allowed
    assert call(server.port, "DELETE", "/v1/nothing").status == 404


@pytest.mark.parametrize(
    ("route", "fields", "delta"),
    [
        ("chat/completions", {"messages": MESSAGES, "response_format": {**LINES, "json_schema": LINES}}, ""),
        ("responses", {"input": "x", "text": {"format": LINES}}, "response.output_text.delta"),
    ],
)
def test_a_stream_has_no_character_that_clients_take_for_the_end_of_a_line(
    server: AppProcess, route: str, fields: dict[str, Any], delta: str
) -> None:
    sent = call(server.port, "POST", f"/v1/{route}", json.dumps({**fields, "stream": True})).text
    events = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
    pieces = [
        one["delta"] if delta else one["choices"][0]["delta"].get("content", "")
        for one in events
        if one.get("type", "") == delta
    ]
    assert json.loads("".join(pieces)) == LINES["schema"]["const"]


def test_dimensions_other_than_the_embedders_are_refused(server: AppProcess) -> None:
    size = len(embedded(server).json()["data"][0]["embedding"])
    assert embedded(server, dimensions=size).status == 200
    reply = embedded(server, dimensions=size - 1)
    assert refused(reply) == (400, "invalid_value")
    assert str(size) in reply.json()["error"]["message"]


def test_as_many_texts_are_embedded_at_once_as_clients_send(server: AppProcess) -> None:
    reply = embedded(server, input=["x" * 1200] * 1000)
    assert reply.status == 200, reply.text
    assert len(reply.json()["data"]) == 1000
    assert "at most 2048 items" in embedded(server, input=["x"] * 2049).json()["error"]["message"]


def test_logprobs_have_the_bytes_of_every_token(server: AppProcess) -> None:
    fields = {"logprobs": True, "top_logprobs": 20, "max_tokens": 24, "temperature": 2, "seed": 5}
    answer = post(server, {"messages": MESSAGES, **fields}).json()["choices"][0]
    entries = answer["logprobs"]["content"]
    everything = [one for entry in entries for one in (entry, *entry["top_logprobs"])]
    assert all(one["bytes"] for one in everything)
    assert any("\ufffd" in one["token"] for one in everything)
    text = bytes(byte for entry in entries for byte in entry["bytes"]).decode("utf-8", "replace")
    assert text.startswith(answer["message"]["content"].rstrip("\ufffd"))


def test_the_server_describes_itself(server: AppProcess) -> None:
    described = call(server.port, "GET", "/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/embeddings", "/v1/local", "/health"} <= described["paths"].keys()
    assert "422" not in json.dumps(described)
    chat = described["components"]["schemas"]["ChatRequest"]
    assert "messages" in chat["required"]


def test_annotations_are_file_citations_and_only_there_when_requested(server: AppProcess) -> None:
    asked = {"messages": MESSAGES, "max_tokens": 12, "logit_bias": {"257": -100}}
    cited = {**asked, "memory": {"citations": True}}
    assert "annotations" not in post(server, asked).json()["choices"][0]["message"]
    answer = post(server, cited).json()
    message = answer["choices"][0]["message"]
    read = {m["memory_id"]: m for chunk in answer["memory"]["chunks"] for m in chunk["read"]}
    for one in message["annotations"]:
        assert one["type"] == "file_citation"
        assert one["text"] == message["content"][one["start_index"] : one["end_index"]]
        found = one["file_citation"]
        assert found["filename"] == read[found["file_id"]]["source"]
        assert 0 < found["score"] <= 1
        assert found["quote"] is None
    shown = post(server, {**cited, "memory": {"citations": True, "texts": True}}).json()["choices"][0]["message"]
    assert all(one["file_citation"]["quote"] for one in shown["annotations"] if one["file_citation"]["passage"])
    last = post(server, {**cited, "stream": True}).text.split("data: ")[-2]
    assert json.loads(last)["choices"][0]["delta"] == {"annotations": message["annotations"]}
