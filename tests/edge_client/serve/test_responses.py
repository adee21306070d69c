"""The Responses API as the official client reads it, and what of it is kept."""

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from edge_client.serve.items import Item, ResponseRequest
from edge_client.serve.refusals import ApiError
from edge_client.serve.requests import ChatRequest, Custom, Function, call_schema
from edge_client.serve.responses import Kept, Memo, ResponseForm
from edge_client.stream import Event, Token
from testing.processes import AppProcess
from tests.edge_client.http_calls import MESSAGES, MODEL, QUESTION, call, post, refused

ADD: Any = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
}
OK: Any = {"type": "json_schema", "name": "ok", "schema": {"const": {"ok": True}}}


def asked(server: AppProcess, **fields: Any) -> Any:
    return call(server.port, "POST", "/v1/responses", json.dumps({"input": QUESTION, "max_output_tokens": 8, **fields}))


def chatted(server: AppProcess, *messages: dict[str, str], tokens: int = 8) -> str:
    reply = post(server, {"messages": [*messages], "max_tokens": tokens}).json()
    return str(reply["choices"][0]["message"]["content"])


def test_a_response_says_what_a_chat_completion_says(server: AppProcess, client: OpenAI) -> None:
    found = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=8)
    assert found.output_text == chatted(server, *MESSAGES)
    assert (found.status, found.incomplete_details and found.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert found.usage is not None
    assert found.usage.output_tokens == 8
    whole = asked(server).json()
    Response.model_validate(whole, strict=True)
    assert whole["memory"]["chunks"][0]["read"], "what was read"
    instructed = client.responses.create(model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=8)
    assert instructed.output_text == chatted(server, {"role": "system", "content": "Be brief."}, *MESSAGES)


def test_a_stream_has_the_events_of_openai_and_ends_with_the_same_response(server: AppProcess, client: OpenAI) -> None:
    known: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    reply = asked(server, stream=True, memory={"citations": True})
    sent = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert [line[7:] for line in reply.text.splitlines() if line.startswith("event: ")] == [one["type"] for one in sent]
    for number, event in enumerate(sent):
        known.validate_python(event)
        assert event["sequence_number"] == number
    kinds = [event["type"].removeprefix("response.") for event in sent]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    said = "".join(event["delta"] for event in sent if event["type"] == "response.output_text.delta")
    assert said == asked(server).json()["output"][0]["content"][0]["text"] == sent[-4]["text"]
    last, plain = sent[-1]["response"], asked(server, memory={"citations": True}).json()
    changing = ("id", "created_at", "timings", "memory", "output", "usage")
    assert {k: v for k, v in last.items() if k not in changing} == {k: v for k, v in plain.items() if k not in changing}
    assert last["output"][0]["content"] == plain["output"][0]["content"]
    with client.responses.stream(model=MODEL, input=QUESTION, text={"format": OK}) as stream:
        assert json.loads(stream.get_final_response().output_text) == {"ok": True}


def test_a_response_goes_on_from_an_earlier_one_without_its_instructions(server: AppProcess, client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=4)
    again = client.responses.create(model=MODEL, input="And?", previous_response_id=first.id, max_output_tokens=8)
    history = [*MESSAGES, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And?"}]
    assert again.output_text == chatted(server, *history)
    assert again.previous_response_id == first.id
    third = client.responses.create(model=MODEL, input="So?", previous_response_id=again.id, max_output_tokens=4)
    history += [{"role": "assistant", "content": again.output_text}, {"role": "user", "content": "So?"}]
    assert third.output_text == chatted(server, *history, tokens=4)
    own = client.responses.input_items.list(third.id).data
    assert [(one.type, one.content[0].text) for one in own] == [("message", "So?")]


def test_a_reference_to_a_kept_item_is_read_as_the_item(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=4)
    question: Any = {"role": "user", "content": QUESTION}
    further: Any = {"role": "user", "content": "And?"}
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    referred = client.responses.create(model=MODEL, input=[question, reference, further], max_output_tokens=8)
    given: Any = {"role": "assistant", "content": first.output_text}
    written = client.responses.create(model=MODEL, input=[question, given, further], max_output_tokens=8)
    assert referred.output_text == written.output_text
    listed = client.responses.input_items.list(referred.id, order="asc").data
    assert [one.type for one in listed] == ["message"] * 3
    begun = client.conversations.create(items=[reference])
    assert [one.type for one in client.conversations.items.list(begun.id).data] == ["message"]


def test_a_conversation_grows_by_its_responses(server: AppProcess, client: OpenAI) -> None:
    begun = client.conversations.create(items=[{"type": "message", "role": "user", "content": "The code is 777."}])
    for asking in ("Which code?", "Sure?"):
        client.responses.create(model=MODEL, input=asking, conversation=begun.id, max_output_tokens=2)
    items = client.conversations.items.list(begun.id, order="asc").data
    assert [one.role for one in items] == ["user", "user", "assistant", "user", "assistant"]
    client.conversations.items.create(begun.id, items=[{"type": "message", "role": "user", "content": "Last"}])
    newest = client.conversations.items.list(begun.id, limit=2)
    with pytest.raises(openai.NotFoundError, match="no item 'gone'"):
        client.conversations.items.list(begun.id, after="gone")
    assert newest.has_more
    assert len([*newest]) == 6, "all pages"
    assert client.conversations.retrieve(begun.id).id == begun.id
    assert client.conversations.delete(begun.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input="x", conversation=begun.id)


def test_a_conversation_that_is_deleted_during_an_answer_stays_deleted(client: OpenAI) -> None:
    begun = client.conversations.create()
    with client.responses.create(
        model=MODEL, input=QUESTION, conversation=begun.id, max_output_tokens=40, stream=True
    ) as stream:
        assert next(stream).type == "response.created"
        client.conversations.delete(begun.id)
        assert [event.type for event in stream][-1] in ("response.completed", "response.incomplete")
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(begun.id)


def test_what_is_kept_is_read_and_forgotten_and_the_rest_is_not_kept(server: AppProcess, client: OpenAI) -> None:
    kept = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=2, metadata={"of": "me"})
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    assert client.responses.retrieve(kept.id).metadata == {"of": "me"}
    client.responses.delete(kept.id)
    loose = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=2, store=False)
    for gone in (kept, loose):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone.id)
        assert refused(asked(server, previous_response_id=gone.id)) == (400, "previous_response_not_found")


NAMED = {"type": "function", "name": "add"}


@pytest.mark.parametrize(
    "choice", ["required", NAMED, {"type": "allowed_tools", "mode": "required", "tools": [NAMED, {"type": "mcp"}]}]
)
def test_a_function_that_is_demanded_is_called_whole_and_streamed(client: OpenAI, choice: Any) -> None:
    wanted: dict[str, Any] = {"model": MODEL, "input": QUESTION, "tools": [ADD], "tool_choice": choice}
    (item,) = client.responses.create(**wanted).output
    assert item.type == "function_call"
    assert json.loads(item.arguments)["a"] in (1, 2)
    with client.responses.stream(**wanted) as stream:
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert (streamed.name, streamed.arguments) == ("add", item.arguments)
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "42"}
    sent = {"type": "function_call", "call_id": item.call_id, "name": "add", "arguments": item.arguments}
    given: Any = [{"role": "user", "content": QUESTION}, sent, result]
    answer = client.responses.create(model=MODEL, input=given, tools=[ADD], max_output_tokens=4)
    assert answer.output[0].type == "message"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "grammar", "syntax": "regex", "definition": "[0-9]{2}x"}, r"\d\dx"),
        ({"type": "grammar", "syntax": "lark", "definition": 'start: N " + " N\nN: /[0-9]/'}, r"\d \+ \d"),
    ],
)
def test_a_custom_tool_gets_a_text_of_its_grammar(
    server: AppProcess, client: OpenAI, form: dict[str, str], expected: str
) -> None:
    tool: Any = {"type": "custom", "name": "math", "format": form}
    (item,) = asked(server, tools=[tool], tool_choice="required", max_output_tokens=40).json()["output"]
    assert (item["type"], item["name"]) == ("custom_tool_call", "math")
    assert re.fullmatch(expected, item["input"])
    with client.responses.stream(model=MODEL, input=QUESTION, tools=[tool], tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        (streamed,) = stream.get_final_response().output
    assert "response.custom_tool_call_input.done" in kinds
    assert streamed.type == "custom_tool_call"
    assert streamed.input == item["input"]
    nested = {"type": "custom", "custom": {"name": "math", "format": {"type": "grammar", "grammar": form}}}
    chat = post(server, {"messages": MESSAGES, "tools": [nested], "tool_choice": "required"}).json()["choices"][0]
    assert chat["finish_reason"] == "tool_calls"
    assert re.fullmatch(expected, chat["message"]["tool_calls"][0]["custom"]["input"])


def test_what_another_model_answered_is_read_with_its_refusals_and_without_its_reasoning() -> None:
    reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []}
    refusal = {"type": "refusal", "refusal": "I can't."}
    question, further = {"role": "user", "content": "x"}, {"role": "user", "content": "And?"}
    answered = {"type": "message", "role": "assistant", "content": [refusal]}
    body = ResponseRequest.model_validate({"input": [question, reasoning, answered, further]})
    chat = ChatRequest.model_validate({"messages": [question, {"role": "assistant", "content": [refusal]}, further]})
    expected = [question, {"role": "assistant", "content": "I can't."}, further]
    assert body.chat(body.items).conversation() == chat.conversation() == expected
    listed = [item.as_json() for item in body.items]
    assert [item["content"][0]["text"] for item in listed if item["type"] == "message"] == ["x", "I can't.", "And?"]


def test_a_custom_tool_without_a_grammar_is_called_with_any_text() -> None:
    tools = [{"type": "custom", "name": "math"}, ADD]
    body = ResponseRequest.model_validate({"input": "x", "tools": tools, "tool_choice": "required"})
    chat = body.chat(body.items)
    forms = call_schema(chat.callable_tools())["anyOf"]
    assert [[*form["properties"]] for form in forms] == [["name", "input"], ["name", "arguments"]]
    for text, expected in (
        ('{"name": "math", "input": "4\\n+4"}', Custom(name="math", input="4\n+4")),
        ('{"name": "add", "arguments": {"a": 1}}', Function(name="add", arguments='{"a": 1}')),
    ):
        assert chat.called(text) == expected
    assert "in JSON with name and arguments, or input" in chat.conversation()[0]["content"]


@pytest.mark.parametrize("reference", ["#", "#/$defs/leaf"])
def test_a_reference_within_the_parameters_of_a_function_leads_to_the_same_place(reference: str) -> None:
    leaf = {"const": 1}
    parameters = {"$defs": {"leaf": leaf}, "properties": {"child": {"$ref": reference}}}
    whole: Any = call_schema([Function(name="other"), Function(name="tree", parameters=parameters)])
    found = whole
    for step in whole["anyOf"][1]["properties"]["arguments"]["properties"]["child"]["$ref"].split("/")[1:]:
        found = found[int(step) if isinstance(found, list) else step]
    arguments = whole["anyOf"][1]["properties"]["arguments"]
    assert found == (arguments if reference == "#" else leaf)


def test_the_only_tool_to_call_gets_the_answer_as_its_input(server: AppProcess) -> None:
    tool = {"type": "custom", "name": "math"}
    ends = {"logit_bias": {"257": 100}, "max_output_tokens": 8}
    for choice in ("required", {"type": "custom", "name": "math"}):
        (item,) = asked(
            server, tools=[tool, *([] if choice == "required" else [ADD])], tool_choice=choice, **ends
        ).json()["output"]
        assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "math", "")


def test_a_call_that_is_cut_off_is_shown_as_its_text(server: AppProcess) -> None:
    wanted = {"tools": [ADD], "tool_choice": "required", "max_output_tokens": 2}
    assert asked(server, **wanted).json()["output"][0]["type"] == "message"
    streamed = [json.loads(x[6:]) for x in asked(server, stream=True, **wanted).text.splitlines() if x[:5] == "data:"]
    assert [one["type"] for one in streamed][2:4] == ["response.output_item.added", "response.content_part.added"]
    assert streamed[-1]["response"]["output"][0]["content"][0]["text"] == streamed[-4]["text"] != ""


def test_an_answer_is_json_of_the_schema(client: OpenAI) -> None:
    found = client.responses.create(model=MODEL, input=QUESTION, text={"format": OK})
    assert json.loads(found.output_text) == {"ok": True}


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"input": 1}, 400, "input"),
        ({"input": ""}, 400, "input: is empty"),
        ({"input": [{"type": "reasoning"}]}, 400, "input: is empty"),
        ({"input": [{"content": "x"}]}, 400, "a message must have a role"),
        ({"input": [{"type": "function_call"}]}, 400, "a call must have a name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input_text"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, 400, "function_call_output"),
        ({"input": [{"type": "item_reference"}]}, 400, "must have the id of an item"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 404, "there is no item 'x'"),
        ({"previous_response_id": "a", "conversation": "b"}, 400, "either previous_response_id or"),
        ({"conversation": "b"}, 404, "there is no conversation 'b'"),
        ({"text": {"format": {"type": "json_schema"}}}, 400, "must hold the schema"),
        ({"tools": [ADD], "tool_choice": {"type": "web_search", "name": "x"}}, 400, "custom"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, 400, "which tools does not have"),
        ({"metadata": {str(n): "" for n in range(17)}}, 400, "metadata"),
        (
            {"tools": [{"type": "custom", "name": "m", "format": {"type": "grammar"}}], "tool_choice": "required"},
            400,
            "must have syntax and definition",
        ),
        *(
            (
                {
                    "tools": [{"type": "custom", "name": "m", "format": {"type": "grammar", **grammar}}, *others],
                    "tool_choice": "required",
                },
                400,
                said,
            )
            for grammar, others, said in (
                ({"syntax": "lark", "definition": "start: missing"}, [], "the Lark grammar cannot be used"),
                ({"syntax": "regex", "definition": "["}, [], "the regular expression cannot be used"),
                ({"syntax": "regex", "definition": "x" * 70_000}, [], "the limit is 65536"),
                ({"syntax": "regex", "definition": "x"}, [ADD], "cannot be chosen among others"),
            )
        ),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    server: AppProcess, fields: dict[str, Any], status: int, said: str
) -> None:
    reply = asked(server, **fields)
    assert refused(reply) == (status, "not_found" if status == 404 else "invalid_value")
    assert said in reply.json()["error"]["message"]


def test_fields_and_tools_that_are_not_used_are_named(server: AppProcess) -> None:
    reply = asked(server, reasoning={"effort": "low"}, tools=[{"type": "web_search"}], include=[])
    assert reply.headers["x-ignored-fields"] == "reasoning, include, tools"
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}
    reply = asked(server, tools=[ADD], tool_choice=allowed)
    assert reply.headers["x-ignored-fields"] == "tools"
    assert reply.json()["output"][0]["type"] == "message"
    assert reply.json()["tool_choice"] == allowed


async def test_a_stream_that_fails_ends_with_a_response_that_says_why() -> None:
    async def events() -> AsyncGenerator[Event, None]:
        yield Token(1, "Hi")
        raise ApiError(503, "the service is gone", code="unavailable")

    body = ResponseRequest(input="x")
    form, sent = ResponseForm(body, body.chat(body.items), MODEL), list[dict[str, Any]]()
    with pytest.raises(ApiError) as failed:
        sent += [event async for event in form.events(events(), lambda _: None)]
    last = form.failure(failed.value)
    assert last["sequence_number"] == 5, "behind four events that begin the answer, and one of its text"
    assert last["response"]["error"] == {"code": "server_error", "message": "the service is gone"}
    TypeAdapter(ResponseStreamEvent).validate_python(last)


def test_the_oldest_is_forgotten_where_there_is_no_room() -> None:
    def kept(name: str, text: str) -> Kept:
        return Kept({"id": name, "object": "response"}, [Item(role="user", content=text)])

    memo = Memo(most=2500)
    for name in "abc":
        memo.keep(kept(name, "x" * 500))
    memo.get("a", "response")
    memo.keep(kept("d", "x" * 500))
    with pytest.raises(ApiError, match="'b'"):
        memo.get("b", "response")
    assert memo.get("a", "response").body["id"] == "a", "it was used later"
    memo.keep(kept("e", "x" * 5000))
    assert memo.get("e", "response").items, "the latest stays, however large"
    with pytest.raises(ApiError, match="no conversation 'e'"):
        memo.get("e", "conversation")
