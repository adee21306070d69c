"""`edge-client serve` as a real process, called with the official client: answers, streams, refusals, the line."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from typer.testing import CliRunner

from deploy.app_process import AppProcess
from edge_client.cli.main import app
from edge_client.model import EdgeModel
from memory_model.bundle import Bundle
from memory_model.codec.payload import ExplicitMemory
from protos.memory.v1 import models_pb2
from tests.edge_client.conftest import TEXTS
from tests.edge_client.fake_service import FakeService, serving
from tests.edge_client.http_calls import Reply, call
from tests.edge_client.tiny_bundle import format_of, tiny_loaded

QUESTION = "What is the code of Lima?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
MODEL = "tiny"


@pytest.fixture(scope="module")
def memories(tiny: Bundle, written: list[ExplicitMemory]) -> Iterator[FakeService]:
    """The service, the same for all tests of this file."""
    manifest = tiny.manifest
    description = models_pb2.DescribeResponse(
        model_id=manifest.model_id, codec_id=manifest.codec_id, memory_format_id=manifest.memory_format_id,
        embedder_id=manifest.embedder_id, service_version="test",
    )  # fmt: skip
    payloads = format_of(tiny_loaded()).encode(written)
    with serving(FakeService(tiny.embedder(), TEXTS, payloads, description=description)) as running:
        yield running


@pytest.fixture(scope="module")
def server(
    tiny: Bundle, memories: FakeService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AppProcess]:
    settings = {
        "EDGE_CLIENT_MEMORY": "exact", "EDGE_CLIENT_DEADLINE_S": "20", "EDGE_CLIENT_CHUNK_DEADLINE_S": "20",
        "EDGE_CLIENT_SERVE_PARALLEL": "1", "EDGE_CLIENT_SERVE_WAITING": "2",
        "EDGE_CLIENT_SERVE_ALLOWED_ORIGINS": '["http://friend.test"]',
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("serve")
    with AppProcess.start(folder, tiny.folder, memories.address, environment=settings) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def client(server: AppProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as opened:
        yield opened


def post(server: AppProcess, body: object, **headers: str) -> Reply:
    return call(server.port, "POST", "/v1/chat/completions", json.dumps(body), **headers)


def refused(reply: Reply) -> tuple[int, str | None]:
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return reply.status, error["code"]


# Answers


def test_a_chat_answers_as_the_sdk_does_with_provenance_and_timings(
    client: OpenAI, tiny: Bundle, memories: FakeService
) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20)
    with EdgeModel.open(
        tiny.folder, memories.address, memory="exact", deadline_s=20, chunk_deadline_s=20
    ) as model:
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
    assert answer.model_extra["memory"] == {"without_memory": False, "chunks": []}
    assert len(memories.requests) == before


def test_a_request_may_name_a_knowledge_base_or_several(client: OpenAI, memories: FakeService) -> None:
    before = len(memories.requests)
    client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, extra_body={"memory": {"knowledge_base": "atlas"}}
    )
    assert {r.knowledge_base for r in memories.requests[before:]} == {"atlas"}
    before = len(memories.requests)
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=2,
        extra_body={"memory": {"knowledge_bases": ["towns", "atlas"]}},
    )
    assert {r.knowledge_base for r in memories.requests[before:]} == {"atlas", "towns"}
    chunk = (answer.model_extra or {})["memory"]["chunks"][0]
    assert chunk["read"]
    assert {read["knowledge_base"] for read in chunk["read"]} <= {"atlas", "towns"}


def test_the_next_turn_reads_only_what_is_new(client: OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12)
    said = {"role": "assistant", "content": first.choices[0].message.content}
    messages = [*MESSAGES, said, {"role": "user", "content": "And of Rome?"}]
    second = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.prompt_tokens


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
    whole = client.completions.create(model=MODEL, prompt="The code of Lima", max_tokens=9, logprobs=2)
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.tokens or []) == 9
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
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_health_and_metrics(server: AppProcess, client: OpenAI) -> None:
    client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
    health = call(server.port, "GET", "/health").json()
    assert health["status"] == "ok"
    assert health["model"]["chunk_tokens"] == 16
    metrics = call(server.port, "GET", "/metrics").text
    for name in (
        "edge_answers_total",
        "edge_recalls_total",
        "edge_first_token_seconds_bucket",
        "edge_answers_running",
    ):
        assert name in metrics
    assert 'edge_http_requests_total{route="/v1/chat/completions",status="200"}' in metrics


# The line


def test_who_hangs_up_gives_place_to_the_next(server: AppProcess, client: OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=400, stream=True)
    next(iter(stream))
    waiting = client.with_options(timeout=60)
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(waiting.chat.completions.create, model=MODEL, messages=MESSAGES, max_tokens=2)
        stream.close()
        assert later.result(30).usage is not None
    _wait_until_idle(server)


def test_who_leaves_the_line_is_forgotten_and_a_full_line_refuses(
    server: AppProcess, client: OpenAI, memories: FakeService
) -> None:
    gate = threading.Event()
    memories.before = lambda *_: gate.wait(30) and None
    body = json.dumps({"messages": MESSAGES, "max_tokens": 2, "stream": False})
    try:
        sockets = [_send(server.port, body) for _ in range(3)]  # one is answered, two stand in line
        _wait_for(lambda: _answers(server) == {"running": 1, "waiting": 2})
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
        sockets[1].close()
        _wait_for(lambda: _answers(server) == {"running": 1, "waiting": 1})
        sockets[0].close()  # the one whose memories do not come
        gate.set()
        assert b'"finish_reason":"length"' in _read(sockets[2])
    finally:
        gate.set()
        memories.before = None
    _wait_until_idle(server)


# Refusals


def test_bad_input_is_refused_by_name_and_the_server_lives_on(server: AppProcess) -> None:
    def chat(**fields: object) -> tuple[int, str | None]:
        return refused(post(server, {"messages": MESSAGES, **fields}))

    assert chat(tools=[]) == (400, "invalid_value")
    assert chat(messages=[]) == (400, "invalid_value")
    assert chat(messages=[{"role": "assistant", "content": "x"}]) == (400, "invalid_value")
    assert chat(messages=[{"role": "king", "content": "x"}]) == (400, "invalid_value")
    assert chat(temperature=-1) == (400, "invalid_value")
    assert chat(n=2) == (400, "invalid_value")
    assert chat(top_logprobs=2) == (400, "invalid_value")
    assert chat(memory={"mode": "sometimes"}) == (400, "invalid_value")
    assert chat(memory={"knowledge_base": "../etc"}) == (400, "invalid_value")
    assert chat(memory={"knowledge_bases": []}) == (400, "invalid_value")
    assert chat(memory={"knowledge_bases": ["a", "b,c"]}) == (400, "invalid_value")
    assert chat(memory={"knowledge_bases": ["a"], "knowledge_base": "a"}) == (400, "invalid_value")
    assert chat(model="gpt-4") == (404, "model_not_found")
    assert chat(messages=[{"role": "user", "content": "x" * 5000}]) == (400, "context_length_exceeded")
    for text in ("", "{", "[" * 100_000, "null", '{"messages": "\ud800"}'.encode("utf-8", "surrogatepass")):
        assert call(server.port, "POST", "/v1/chat/completions", text).status == 400
    plain = call(
        server.port, "POST", "/v1/chat/completions", '{"messages": []}', **{"Content-Type": "text/plain"}
    )
    assert "Content-Type: application/json" in plain.json()["error"]["message"]
    assert refused(call(server.port, "GET", "/v1/nothing"))[0] == 404
    assert refused(call(server.port, "GET", "/../../etc/passwd"))[0] == 404
    assert refused(call(server.port, "POST", "/health"))[0] == 405
    assert call(server.port, "GET", "/health").status == 200


def test_a_body_larger_than_agreed_is_refused_with_and_without_a_length(server: AppProcess) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * (2 << 20)}]})
    assert refused(call(server.port, "POST", "/v1/chat/completions", body)) == (413, "body_too_large")
    pieces = [body[i : i + 65536].encode() for i in range(0, len(body), 65536)]
    assert call(server.port, "POST", "/v1/chat/completions", iter(pieces)).status == 413
    assert call(server.port, "GET", "/health").status == 200


def test_other_sites_and_other_names_are_refused(server: AppProcess) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1}
    assert refused(post(server, body, Origin="http://evil.test")) == (403, "origin_not_allowed")
    assert refused(post(server, body, Origin="null")) == (403, "origin_not_allowed")
    assert refused(post(server, body, Origin=f"http://localhost:{server.port}")) == (
        403,
        "origin_not_allowed",
    )
    assert refused(post(server, body, Host="evil.test")) == (403, "host_not_allowed")
    assert refused(post(server, body, **{"Sec-Fetch-Site": "cross-site"})) == (403, "origin_not_allowed")
    assert post(server, body, Origin=server.url).status == 200
    friend = post(server, body, Origin="http://friend.test")
    assert friend.status == 200
    assert friend.headers["access-control-allow-origin"] == "http://friend.test"
    assert "access-control-allow-origin" not in post(server, body, Origin=server.url).headers
    preflight = call(server.port, "OPTIONS", "/v1/chat/completions", Origin="http://evil.test")
    assert preflight.status == 403


def test_the_page_may_load_nothing_from_outside(server: AppProcess) -> None:
    page = call(server.port, "GET", "/")
    assert page.status == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in page.text.replace("http://www.w3.org/", "")
    assert "https://" not in page.text


def test_with_a_key_nobody_gets_in_without(tiny: Bundle, memories: FakeService, tmp_path: Path) -> None:
    environment = {"EDGE_CLIENT_SERVE_API_KEY": "s3cret-of-the-device"}
    with AppProcess.start(tmp_path, tiny.folder, memories.address, environment=environment) as server:
        with pytest.raises(openai.AuthenticationError):
            OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0).models.list()
        right = OpenAI(base_url=f"{server.url}/v1", api_key="s3cret-of-the-device", max_retries=0)
        assert next(m.id for m in right.models.list()) == MODEL
        assert call(server.port, "GET", "/metrics").status == 401
        assert call(server.port, "GET", "/").status == 200  # the page asks for the key
    assert "s3cret" not in server.log.read_text()


def test_it_does_not_open_itself_to_a_network_without_a_key(tiny: Bundle) -> None:
    result = CliRunner().invoke(app, ["serve", "--bundle", str(tiny.folder), "--host", "0.0.0.0"])
    assert result.exit_code == 1
    assert "EDGE_CLIENT_SERVE_API_KEY" in result.output


# The service behind it


def test_when_the_service_is_away_answers_go_on_and_say_so(tiny: Bundle, nobody: str, tmp_path: Path) -> None:
    with AppProcess.start(tmp_path, tiny.folder, nobody) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4)
        assert answer.model_extra is not None
        assert answer.model_extra["memory"]["without_memory"]
        assert "UNREACHABLE" in answer.model_extra["memory"]["chunks"][0]["error"]
        told = call(server.port, "GET", "/v1/service").json()
        assert not told["reachable"]
        assert refused(call(server.port, "GET", "/v1/knowledge_bases"))[0] == 503
        upload = call(server.port, "POST", "/v1/knowledge_bases/default/documents?key=a", "some text")
        assert '"error"' in upload.text


def test_an_upload_must_be_text_of_a_bounded_size_with_a_proper_name(server: AppProcess) -> None:
    def upload(path: str, body: bytes) -> tuple[int, str | None]:
        return refused(call(server.port, "POST", f"/v1/knowledge_bases/{path}", body))

    assert upload("default/documents?key=a", b"\xff\xfe\x00") == (415, "not_text")
    assert upload("default/documents?key=a", b"  \n") == (400, "invalid_value")
    assert upload("default/documents?key=a", b"%PDF-1.7 ...") == (415, "not_text")
    assert upload("default/documents?key=", b"x")[0] == 400
    assert upload("default/documents", b"x")[0] == 400
    assert upload("..x/documents?key=a", b"x")[0] == 400
    assert upload("default/documents?key=a", b"x" * (5 << 20)) == (413, "body_too_large")


def _send(port: int, body: str) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    )
    opened.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
    time.sleep(0.05)  # they stand in line in the order in which they came
    return opened


def _read(opened: socket.socket) -> bytes:
    pieces = []
    while piece := opened.recv(65536):
        pieces.append(piece)
    opened.close()
    return b"".join(pieces)


def _answers(server: AppProcess) -> dict[str, int]:
    found: dict[str, int] = call(server.port, "GET", "/health").json()["answers"]
    return found


def _wait_until_idle(server: AppProcess) -> None:
    _wait_for(lambda: _answers(server) == {"running": 0, "waiting": 0})


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
