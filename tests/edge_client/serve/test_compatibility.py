"""What clients of OpenAI's interface send beyond what this server has: ignored by name, or with a defined answer."""

import json
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from deploy.processes import AppProcess
from tests.edge_client.http_calls import MESSAGES, MODEL, post

TOWN: dict[str, Any] = {
    "$defs": {"Town": {"enum": ["Oslo", "Lima"]}},
    "type": "object", "properties": {"town": {"$ref": "#/$defs/Town"}}, "required": ["town"],
    "additionalProperties": False,
}  # fmt: skip
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


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
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
