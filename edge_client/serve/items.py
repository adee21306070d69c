"""Bodies of the Responses API: the supported fields, and the items that its input and its conversations consist of.

A request becomes a `ChatRequest`, so that both interfaces are answered the same way.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from edge_client.serve.requests import (
    AllowedChoice,
    AllowedTools,
    ChatMessage,
    ChatRequest,
    Choice,
    Custom,
    CustomFormat,
    Drawn,
    Function,
    Given,
    Grammar,
    NamedTool,
    RefusalPart,
    ResponseFormat,
    TokenLimit,
    Tolerant,
    Tool,
    callable_among,
)
from memory3.errors import InvalidInput

MOST_ITEMS = 1024
MOST_METADATA = 16


class ItemPart(Tolerant):
    """A part of an item's content; only text is supported. annotations, logprobs: of an earlier answer; not read.

    reasoning_text: of reasoning, which is not read.
    """

    type: Literal["input_text", "output_text", "text", "reasoning_text"]
    text: str
    annotations: list[Any] = Field(default=[])
    logprobs: list[Any] = Field(default=[])


class Item(Tolerant):
    """A message, a call of a tool, what it returned, or reasoning, which is not read. status: not read.

    id: read of an item_reference alone, which stands for the item of this id that is kept.
    """

    type: Literal[
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        "item_reference",
    ] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ItemPart | RefusalPart] = ""
    name: str = ""
    arguments: str = "{}"
    input: str = ""
    output: str | list[ItemPart | RefusalPart] = ""
    call_id: str = ""
    id: str = ""
    status: str = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Item:
        if self.type == "message" and self.role is None:
            raise ValueError("a message must have a role: system, developer, user or assistant")
        if self.type in ("function_call", "custom_tool_call") and not self.name:
            raise ValueError("a call must have a name")
        if self.type == "item_reference" and not self.id:
            raise ValueError("an item_reference must have the id of an item")
        return self

    def message(self) -> ChatMessage | None:
        """As a turn of a chat; None for reasoning."""
        if self.type == "reasoning":
            return None
        if self.type == "message":
            return ChatMessage(role=self.role or "user", content=_text(self.content))
        if self.type == "function_call":
            function = Function(name=self.name, arguments=self.arguments)
            return ChatMessage(role="assistant", tool_calls=[Tool(function=function)])
        if self.type == "custom_tool_call":
            custom = Custom(name=self.name, input=self.input)
            return ChatMessage(role="assistant", tool_calls=[Tool(custom=custom)])
        return ChatMessage(role="tool", content=_text(self.output))

    def named(self) -> Item:
        """The item with an id."""
        return self if self.id else self.model_copy(update={"id": new_id("item")})

    def as_json(self) -> dict[str, Any]:
        """The item as lists of items show it."""
        shown = self.model_dump(exclude_unset=True) | {"type": self.type, "id": self.id}
        if self.type == "message":
            kind = "output_text" if self.role == "assistant" else "input_text"
            text = {"type": kind, "text": _text(self.content), **({"annotations": []} if kind == "output_text" else {})}
            shown |= {"status": "completed", "content": [text]}
        return shown


class Items(Tolerant):
    """POST /v1/conversations, and its items. items: what a conversation begins or goes on with."""

    items: list[Item] = Field(default=[], max_length=MOST_ITEMS)
    metadata: dict[str, str] = Field(default={}, max_length=MOST_METADATA)


class ToolFormat(Given):
    """Of a custom tool's input: any text, or one of a grammar."""

    type: Literal["text", "grammar"] = "text"
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class ResponseTool(Given):
    """A tool; functions and custom tools are supported, the rest is ignored."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat = ToolFormat()

    def as_tool(self) -> Tool:
        """The same in a chat request."""
        about = self.model_dump(include={"name", "description", "parameters", "strict"}, exclude_none=True)
        if self.type == "function":
            return Tool(function=Function.model_validate(about))
        if self.type != "custom":
            return Tool()
        if self.format.type == "text":
            return Tool(custom=Custom(name=self.name, description=self.description))
        if self.format.syntax is None or self.format.definition is None:
            raise InvalidInput(f"tools: the grammar of {self.name} must have syntax and definition")
        grammar = Grammar(syntax=self.format.syntax, definition=self.format.definition)
        form = CustomFormat(type="grammar", grammar=grammar)
        return Tool(custom=Custom(name=self.name, description=self.description, format=form))


class ToolName(Given):
    """The tool that is called."""

    type: Literal["function", "custom"]
    name: str

    def as_choice(self) -> NamedTool:
        """The same in a chat request."""
        return NamedTool.model_validate({self.type: {"name": self.name}})


class AllowedNames(Given):
    """A choice among some of the tools; those that are not named, such as a search of the web, are never called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]

    def as_choice(self) -> AllowedChoice:
        """The same in a chat request."""
        tools = [Tool(function=Function(name=str(tool.get("name", "")))) for tool in self.tools]
        return AllowedChoice(allowed_tools=AllowedTools(mode=self.mode, tools=tools))


class TextFormat(Tolerant):
    """text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool = False

    @model_validator(mode="after")
    def _has_schema(self) -> TextFormat:
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("json_schema must hold the schema")
        return self

    def as_response_format(self) -> ResponseFormat:
        """The same in a chat request."""
        schema = {} if self.schema_ is None else {"schema": self.schema_, "strict": self.strict}
        return ResponseFormat(type=self.type, json_schema=schema)


class TextOptions(Tolerant):
    """What the text of an answer must be."""

    format: TextFormat = TextFormat()


class ConversationName(Given):
    """The conversation that a response belongs to."""

    id: str


class ResponseRequest(Drawn):
    """POST /v1/responses.

    store: whether the response can be read again and continued; both need this process, nothing is on disk. tools: see
    ChatRequest. The options that are not OpenAI's, such as `memory` and `top_k`, are those of chat completions.
    """

    input: str | Annotated[list[Item], Field(max_length=MOST_ITEMS)] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    max_output_tokens: TokenLimit | None = None
    text: TextOptions = TextOptions()
    tools: list[ResponseTool] = Field(default=[])
    tool_choice: Choice | ToolName | AllowedNames = "auto"
    parallel_tool_calls: bool = True
    store: bool = True
    metadata: dict[str, str] = Field(default={}, max_length=MOST_METADATA)

    @model_validator(mode="after")
    def _has_one_past(self) -> ResponseRequest:
        if self.previous_response_id and self.conversation:
            raise ValueError("give either previous_response_id or conversation")
        return self

    @property
    def items(self) -> list[Item]:
        """The input as items."""
        if isinstance(self.input, str):
            return [Item(role="user", content=self.input)] if self.input else []
        return self.input

    @property
    def conversation_id(self) -> str:
        """Of the conversation; empty without one."""
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation or ""

    def chat(self, items: Iterable[Item]) -> ChatRequest:
        """The same request of chat completions, about these items: the past and the input. Raises InvalidInput."""
        messages = [found for item in items if (found := item.message())]
        if not messages:
            raise InvalidInput("input: is empty: give a text or a message")
        if self.instructions:
            messages.insert(0, ChatMessage(role="system", content=self.instructions))
        shared = {name: getattr(self, name) for name in Drawn.model_fields if name in self.model_fields_set}
        return ChatRequest(
            **shared,
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            response_format=self.text.format.as_response_format(),
            tools=self._tools,
            tool_choice=self._choice,
        )

    @property
    def _tools(self) -> list[Tool]:
        return [tool.as_tool() for tool in self.tools]

    @property
    def _choice(self) -> Choice | NamedTool | AllowedChoice:
        return self.tool_choice if isinstance(self.tool_choice, str) else self.tool_choice.as_choice()

    def ignored(self) -> list[str]:
        """See the base class; tools that cannot be called are ignored."""
        unused = self.tools and not callable_among(self._tools, self._choice)
        return [*super().ignored(), *(["tools"] if unused else [])]


def new_id(kind: str) -> str:
    """As `resp_…`."""
    return f"{kind}_{uuid.uuid4().hex}"


def _text(content: str | list[ItemPart | RefusalPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
