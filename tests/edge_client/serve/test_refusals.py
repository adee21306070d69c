"""Who may call the local server and what it refuses, and what it does without a service."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import urllib.request
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from deploy.processes import AppProcess
from memory_model.bundle import Bundle
from tests.edge_client.fake_service import FakeService
from tests.edge_client.http_calls import MESSAGES, MODEL, call, post, refused


def test_bad_input_is_refused_by_name_and_the_server_lives_on(server: AppProcess) -> None:
    def chat(**fields: object) -> tuple[int, str | None]:
        return refused(post(server, {"messages": MESSAGES, **fields}))

    assert chat(messages=[]) == (400, "invalid_value")
    assert chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]) == (400, "invalid_value")
    assert chat(tools=[], tool_choice="required") == (400, "invalid_value")
    assert chat(messages=[{"role": "king", "content": "x"}]) == (400, "invalid_value")
    assert chat(temperature=-1) == (400, "invalid_value")
    assert chat(n=2) == (400, "invalid_value")
    assert chat(top_logprobs=2) == (400, "invalid_value")
    assert chat(memory={"mode": "sometimes"}) == (400, "invalid_value")
    assert chat(memory={"knowledge_base": "../etc"}) == (400, "invalid_value")
    assert chat(memory={"knowledge_bases": []}) == (400, "invalid_value")
    assert chat(memory={"knowledge_bases": ["a", "b,c"]}) == (400, "invalid_value")
    assert chat(memory={"knowledge_bases": ["a"], "knowledge_base": "a"}) == (400, "invalid_value")
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


def test_a_body_that_does_not_arrive_in_time_is_refused(server: AppProcess) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 999\r\n\r\n{{"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as opened:
        opened.sendall(head.encode())
        answer = b"".join(iter(lambda: opened.recv(65536), b""))  # to the end: the connection is closed, too
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"body_too_slow"' in answer


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


def test_without_a_key_of_its_own_this_machine_reads_freely_and_writes_with_the_key_that_was_printed(
    server: AppProcess,
) -> None:
    path = "/v1/knowledge_bases/default/documents?key=a"
    assert call(server.port, "GET", "/v1/models").status == 200
    assert refused(call(server.port, "POST", path, "text")) == (401, "invalid_api_key")
    assert refused(call(server.port, "DELETE", path)) == (401, "invalid_api_key")
    assert refused(call(server.port, "POST", "/v1/knowledge_bases", "{}")) == (401, "invalid_api_key")
    assert f"/#key={server.key}" in server.log.read_text()
    key_file = server.log.parent / "memory3-edge" / "serve-key"
    assert key_file.stat().st_mode & 0o077 == 0


def test_in_a_network_it_wants_its_key_and_knows_its_own_address(
    tiny: Bundle, nobody: str, tmp_path: Path
) -> None:
    with AppProcess.start(tmp_path, tiny.folder, nobody, "--lan") as server:
        shown = re.search(r"chat at http://(\S+):\d+/#key=(\S+),", server.log.read_text())
        assert shown is not None
        assert shown[2] == server.key
        assert "\u2588" in server.log.read_text()  # the QR code
        right = {"Authorization": f"Bearer {server.key}"}
        assert call(server.port, "GET", "/v1/models").status == 401
        assert call(server.port, "GET", "/v1/models", **right).status == 200
        own = call(server.port, "GET", "/v1/models", host=shown[1], **right)
        assert own.status == 200
        assert refused(call(server.port, "GET", "/", Host="evil.test"))[1] == "host_not_allowed"
        assert refused(call(server.port, "GET", "/", Host="10.1.2.3"))[1] == "host_not_allowed"


def test_tls_makes_a_certificate_for_its_names(tiny: Bundle, nobody: str, tmp_path: Path) -> None:
    with AppProcess.start(tmp_path, tiny.folder, nobody, "--tls") as server:
        made = tmp_path / "memory3-edge" / "serve.crt"
        trusting = ssl.create_default_context(cafile=str(made))
        with urllib.request.urlopen(f"https://localhost:{server.port}/health", context=trusting) as answer:
            assert answer.status == 200
        shown = hashlib.sha256(ssl.PEM_cert_to_DER_cert(made.read_text())).hexdigest()
        assert shown in server.log.read_text().replace(":", "").lower()


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
        upload = call(
            server.port, "POST", "/v1/knowledge_bases/default/documents?key=a", "some text",
            Authorization=f"Bearer {server.key}",
        )  # fmt: skip
        assert '"error"' in upload.text


def test_an_upload_must_be_text_of_a_bounded_size_with_a_proper_name(server: AppProcess) -> None:
    def upload(path: str, body: bytes) -> tuple[int, str | None]:
        key = {"Authorization": f"Bearer {server.key}"}
        return refused(call(server.port, "POST", f"/v1/knowledge_bases/{path}", body, **key))

    assert upload("default/documents?key=a", b"\xff\xfe\x00") == (415, "not_text")
    assert upload("default/documents?key=a", b"  \n") == (400, "invalid_value")
    assert upload("default/documents?key=a", b"%PDF-1.7 ...") == (415, "not_text")
    assert upload("default/documents?key=", b"x")[0] == 400
    assert upload("default/documents", b"x")[0] == 400
    assert upload("..x/documents?key=a", b"x")[0] == 400
    assert upload("default/documents?key=a", b"x" * (5 << 20)) == (413, "body_too_large")
