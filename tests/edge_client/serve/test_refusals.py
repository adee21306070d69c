"""Who may call the local server, what it refuses, and how an answer that fails ends."""

import asyncio
import hashlib
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from edge_client.errors import ContextFull
from edge_client.serve import completions
from memory3.files.bundle import Bundle
from testing.processes import AppProcess
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MESSAGES, MODEL, call, post, refused


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "king", "content": "x"}]},
        {"tools": [], "tool_choice": "required"},
        {"tools": ["f"], "tool_choice": "required"},
        {"tools": [{"function": "f"}], "tool_choice": "required"},
        {"tools": [{"function": {"name": "f", "parameters": [1]}}], "tool_choice": "required"},
        {"tool_choice": {"function": "f"}},
        {"tools": [{"function": {"name": "f"}}], "tool_choice": "f"},
        {"tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "function", "name": "f"}},
        {
            "tools": [{"function": {"name": "f"}}],
            "tool_choice": {"allowed_tools": {"mode": "required", "tools": [{"function": {"name": "g"}}]}},
        },
        {"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}, *MESSAGES]},
        {"temperature": -1},
        {"n": 2},
        {"top_logprobs": 2},
        {"memory": {"mode": "sometimes"}},
        {"memory": {"knowledge_base": "../etc"}},
        {"memory": {"knowledge_base": ",".join("abcdefghi")}},
        {"memory": {"tekst": True}},
        {"memory": {"lead_tokens": 4}},  # the server's own, for all requests
    ],
)
def test_a_wrong_value_is_refused_by_name(server: AppProcess, fields: dict[str, object]) -> None:
    assert refused(post(server, {"messages": MESSAGES, **fields})) == (400, "invalid_value")


@pytest.mark.parametrize(
    ("method", "path", "name", "said"),
    [
        ("GET", "/v1/conversations/x/items?limit=0", "limit", "greater than or equal to 1"),
        ("GET", "/v1/responses/x/input_items?order=up", "order", "'asc' or 'desc'"),
        ("GET", "/v1/knowledge_bases/.x/documents", "name", "pattern"),
        ("GET", "/v1/suggestions?knowledge_base=../x", "knowledge_base", "pattern"),
        ("POST", "/v1/local", "key", "Field required"),
        ("PUT", "/v1/local/memories?key=a&chunk_number=-1", "chunk_number", "greater than or equal to 0"),
    ],
)
def test_a_wrong_parameter_of_the_address_is_refused_by_name(
    server: AppProcess, method: str, path: str, name: str, said: str
) -> None:
    reply = call(server.port, method, path, *([json.dumps({"text": ""})] if method == "PUT" else []))
    assert refused(reply) == (400, "invalid_value")
    error = reply.json()["error"]
    assert error["param"] == name
    assert error["message"].startswith(f"{name}: ")
    assert said in error["message"]


def test_bad_requests_are_refused_and_the_server_lives_on(server: AppProcess) -> None:
    long = [{"role": "user", "content": "x" * 5000}]
    assert refused(post(server, {"messages": long})) == (400, "context_length_exceeded")
    unknown = post(server, {"messages": MESSAGES, "memory": {"knowledge_base": "towns,typo"}})
    assert refused(unknown) == (404, "knowledge_base_not_found")
    suggested = call(server.port, "GET", "/v1/suggestions?knowledge_base=typo")
    assert refused(suggested) == (404, "knowledge_base_not_found")
    for text in ("", "{", "[" * 100_000, "null", '{"messages": "\ud800"}'.encode("utf-8", "surrogatepass")):
        assert call(server.port, "POST", "/v1/chat/completions", text).status == 400
    plain = call(server.port, "POST", "/v1/chat/completions", "{}", **{"Content-Type": "text/plain"})
    assert "Content-Type: application/json" in plain.json()["error"]["message"]
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("POST", "/health", 405),
        ("POST", "/v1/audio/speech", 404),
    ):
        assert call(server.port, method, path).status == status


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/chat/completions", "there is no /chat/completions: OpenAI's API is under /v1"),
        ("POST", "/v1/chat/completions/", "there is no /v1/chat/completions/"),
        ("GET", "/v1/responses/x/cancel", "there is no /v1/responses/x/cancel"),
        ("GET", "/v1/chat/completions", "/v1/chat/completions takes POST, not GET"),
        ("POST", "/", "/ takes GET, HEAD, not POST"),
    ],
)
def test_a_wrong_path_or_method_is_refused_with_the_right_ones(
    server: AppProcess, method: str, path: str, said: str
) -> None:
    reply = call(server.port, method, path)
    assert refused(reply)[0] == (404 if "there is no" in said else 405)
    assert reply.json()["error"]["message"].startswith(said)


def test_a_body_larger_than_agreed_is_refused(server: AppProcess) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * (2 << 20)}]})
    assert refused(call(server.port, "POST", "/v1/chat/completions", body)) == (413, "body_too_large")
    large = call(server.port, "POST", "/v1/local?key=a.txt", b"x" * (17 << 20))
    assert refused(large) == (413, "body_too_large")
    assert call(server.port, "GET", "/health").status == 200


def test_other_sites_and_other_names_are_refused(server: AppProcess) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1}
    assert refused(post(server, body, Host="evil.test")) == (403, "host_not_allowed")
    same_machine = f"http://localhost:{server.port}"
    for header in (
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": same_machine},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert refused(post(server, body, **header)) == (403, "origin_not_allowed")
    assert post(server, body, Origin=server.url).status == 200
    for origin in ("http://friend.test", "app://obsidian.md"):
        friend = post(server, body, Origin=origin)
        assert friend.status == 200
        assert friend.headers["access-control-allow-origin"] == origin
    assert "access-control-allow-origin" not in post(server, body, Origin=server.url).headers
    asks = {"Access-Control-Request-Method": "POST"}
    for origin, status in (("http://evil.test", 400), ("http://friend.test", 200)):
        assert call(server.port, "OPTIONS", "/v1/models", Origin=origin, **asks).status == status


def test_an_allowed_site_of_the_internet_may_reach_a_private_network(server: AppProcess) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
    friend = call(server.port, "OPTIONS", "/v1/models", Origin="http://friend.test", **asks)
    assert (friend.status, friend.headers["access-control-allow-private-network"]) == (200, "true")
    evil = call(server.port, "OPTIONS", "/v1/models", Origin="http://evil.test", **asks)
    assert evil.status == 400
    assert "access-control-allow-origin" not in evil.headers


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
        assert refused(call(server.port, "POST", "/v1/local?key=a", "text")) == (401, "invalid_api_key")
        assert call(server.port, "GET", "/").status == 200  # the page asks for the key
    assert "s3cret" not in server.log.read_text()


def test_in_a_network_it_wants_its_key_knows_its_own_address_and_makes_a_certificate(
    tiny: Bundle, nobody: str, tmp_path: Path
) -> None:
    with AppProcess.start(tmp_path, tiny.folder, nobody, "--lan", "--tls") as server:
        log, made = server.log.read_text(), tmp_path / "memory3-edge" / "serve.crt"
        shown = re.search(r"chat at https://(\S+):\d+/#key=(\S+),", log)
        assert shown is not None
        assert shown[2] == server.key
        assert "\u2588" in log  # the QR code
        assert (tmp_path / "memory3-edge" / "serve-key").stat().st_mode & 0o077 == 0
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(made.read_text())).hexdigest()
        assert digest in log.replace(":", "").lower()
        trusting = ssl.create_default_context(cafile=str(made))
        right = {"Authorization": f"Bearer {server.key}"}

        def status(host: str, **headers: str) -> int:
            request = urllib.request.Request(f"https://{host}:{server.port}/v1/models", headers=headers)
            try:
                with urllib.request.urlopen(request, context=trusting) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert status("localhost", **right) == status(shown[1], **right) == 200
        assert status("localhost") == 401
        for name in ("evil.test", "10.1.2.3"):
            assert status("localhost", Host=name, **right) == 403


async def test_while_there_is_no_value_a_comment_keeps_the_connection_and_an_error_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completions, "PING_S", 0.01)
    pieces: list[bytes] = []

    async def values() -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.sleep(0.2)
        yield {"a": 1}
        raise ContextFull("no room")

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pieces.append(message.get("body", b""))

    await completions.event_stream(values())({"type": "http", "method": "POST"}, receive, send)
    lines = b"".join(pieces).decode().strip().split("\n\n")
    assert lines[0].startswith(": ping")
    value, error, end = (line for line in lines if not line.startswith(":"))
    assert value == 'data: {"a":1}'
    assert "context_length_exceeded" in error
    assert end == "data: [DONE]"
