"""Request bodies: the supported fields of OpenAI's API, and `memory`. Other fields are ignored and reported by name.

Structured output: llguidance computes the permitted tokens of a JSON schema at every step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Annotated, Any, Literal, cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from edge_client.generate.sampling import MOST_LOGPROBS, SamplingOptions
from edge_client.recall.policy import RecallMode
from memory3.errors import InvalidInput
from memory3.files.bundle import Bundle

BASE_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
MOST_STOPS = 16
MOST_INPUTS = 2048
"""As OpenAI's: clients fill their requests up to it."""
UNLIMITED = 1 << 31
"""Tokens of an answer without a limit: it ends with the context."""
SEEDS = 1 << 64
LONGEST_GRAMMAR_BYTES = 64 << 10


class GrammarConstraint:
    """Permits tokens that continue a text of the grammar, then the end of the turn. For one answer."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allow(self, logits: np.ndarray) -> np.ndarray:
        """The logits float32 [vocabulary] with -inf where a token is not permitted."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(mask, bitorder="little")[: len(logits)].view(bool)
        return np.where(allowed, logits, -np.inf)

    def took(self, token: int) -> None:
        """The token was chosen."""
        self._matcher.consume_token(token)


class Grammars:
    """Makes constraints for the tokenizer of a bundle, which llguidance reads at the first one. Thread-safe."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        file, end = self._bundle.folder / "tokenizer.json", self._bundle.tokenizer.end_of_turn_id
        return LLTokenizer(str(file), n_vocab=self._bundle.config.vocabulary, eos_token=end)

    def of_schema(self, schema: dict[str, Any], *, strict: bool = False) -> GrammarConstraint:
        """JSON of a schema. Raises InvalidInput for one that cannot be used.

        strict: as OpenAI's, what llguidance does not enforce, such as uniqueItems, is refused instead of ignored.
        """
        # Without free white space, a small model cannot fill its answer with it.
        convert = partial(
            LLMatcher.grammar_from_json_schema, overrides={"whitespace_flexible": False, "lenient": not strict}
        )
        what = "JSON schema (strict: without it, what cannot be enforced is ignored)" if strict else "JSON schema"
        return self._constraint(what, json.dumps(schema), convert)

    def of_syntax(self, grammar: Grammar) -> GrammarConstraint:
        """A text of a Lark grammar or a regular expression. Raises InvalidInput for one that cannot be used."""
        lark = grammar.syntax == "lark"
        convert = LLMatcher.grammar_from_lark if lark else LLMatcher.grammar_from_regex
        return self._constraint("Lark grammar" if lark else "regular expression", grammar.definition, convert)

    def _constraint(self, what: str, text: str, convert: Callable[[str], str]) -> GrammarConstraint:
        if (size := len(text.encode())) > LONGEST_GRAMMAR_BYTES:
            raise InvalidInput(f"the {what} has {size} bytes, the limit is {LONGEST_GRAMMAR_BYTES}")
        try:
            grammar = convert(text)
        except ValueError as error:
            raise InvalidInput(f"the {what} cannot be used: {error}") from error
        if problem := LLMatcher.validate_grammar(grammar, self._tokenizer):
            raise InvalidInput(f"the {what} cannot be used: {problem}")
        return GrammarConstraint(LLMatcher(self._tokenizer, grammar))


class Given(BaseModel):
    """An object that a client sends: null means the default, and fields that are not known are kept but not read."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Optional fields accept null."""
        schema = handler(core)
        found = handler.resolve_ref_schema(schema)
        for name, field in found.get("properties", {}).items():
            if name not in found.get("required", ()):
                found["properties"][name] = {"anyOf": [field, {"type": "null"}]}
        return schema


class Function(Given):
    """A function that may be called, or a call of one."""

    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    arguments: str = "{}"


class Grammar(Given):
    """Which texts a custom tool takes."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(Given):
    """Any text, or one of a grammar."""

    type: Literal["text", "grammar"] = "text"
    grammar: Grammar | None = None


class Custom(Given):
    """A tool whose input is a text, or a call of one."""

    name: str = ""
    description: str | None = None
    format: CustomFormat = CustomFormat()
    input: str = ""


class Tool(Given):
    """A tool, or a call of one; functions and custom tools are supported."""

    function: Function | None = None
    custom: Custom | None = None

    @property
    def either(self) -> Function | Custom | None:
        """What it is; None for another kind, such as a search of the web."""
        return self.function or self.custom


class NamedTool(Tool):
    """The tool that is called."""

    @model_validator(mode="after")
    def _has_name(self) -> NamedTool:
        if not (self.either and self.either.name):
            raise ValueError("the function or custom tool must have a name")
        return self


class AllowedTools(Given):
    """The tools of which one may, or must, be called."""

    mode: Literal["auto", "required"]
    tools: list[Tool]


class AllowedChoice(Given):
    """A choice among some of the tools."""

    allowed_tools: AllowedTools


Choice = Literal["none", "auto", "required", "any"]


def callable_among(tools: Sequence[Tool], choice: Choice | NamedTool | AllowedChoice) -> list[Function | Custom]:
    """The tools of which the answer must call one; empty for a text answer. Raises InvalidInput."""
    allowed = choice.allowed_tools if isinstance(choice, AllowedChoice) else None
    if (allowed.mode if allowed else choice) in ("none", "auto"):
        return []
    demanded = allowed.tools if allowed else [choice] if isinstance(choice, NamedTool) else tools
    names = list(dict.fromkeys(tool.either.name for tool in demanded if tool.either and tool.either.name))
    found = [tool.either for tool in tools if tool.either and tool.either.name in names]
    if not found:
        raise InvalidInput(f"tool_choice requires {' or '.join(names) or 'a function'}, which tools does not have")
    return found


def call_schema(tools: Sequence[Function | Custom]) -> dict[str, Any]:
    """The schema of a call of one of the tools: {"name": …, "arguments": …}, or "input" of a custom one."""
    calls = []
    for number, tool in enumerate(tools):
        properties: dict[str, Any] = {"name": {"const": tool.name}}
        if isinstance(tool, Function):
            arguments = {"type": "object", "additionalProperties": False, **(tool.parameters or {})}
            # References inside a function's schema count from its own root.
            root = f'"$ref": "#/anyOf/{number}/properties/arguments'
            properties["arguments"] = json.loads(json.dumps(arguments).replace('"$ref": "#', root))
        else:
            properties["input"] = {"type": "string"}
        call = {"type": "object", "properties": properties, "required": [*properties]}
        calls.append({**call, "additionalProperties": False})
    return {"anyOf": calls}


class Tolerant(Given):
    """Parsing as OpenAI's: unknown fields are reported as ignored, and 5.0 is accepted as an integer."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _with_whole_numbers(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return given | {k: int(v) for k, v in given.items() if isinstance(v, float) and v.is_integer()}

    def ignored(self) -> list[str]:
        """Names of the ignored fields, such as `store` or `messages.name`."""
        found = [*(self.model_extra or {})]
        for name in type(self).model_fields:
            value = getattr(self, name)
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, Tolerant):
                    found += [f"{name}.{inner}" for inner in part.ignored()]
        return [*dict.fromkeys(found)]


def _call_text(call: Function | Custom) -> str:
    """A call as it was generated; arguments that are no JSON are kept as they are."""
    if isinstance(call, Custom):
        return json.dumps({"name": call.name, "input": call.input}, ensure_ascii=False)
    return f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'


TokenLimit = Literal[-1] | Annotated[int, Field(ge=1)]
"""-1: as many as fit."""


class Exact(Given, extra="forbid"):
    """Our own fields, not OpenAI's: an unknown one is refused with the names of the known ones."""

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, given: Any) -> Any:
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                known = ", ".join(cls.model_fields)
                raise PydanticCustomError("unknown_field", "known: {known}", {"field": name, "known": known})
        return given


class MemoryOptions(Exact):
    """Which memories an answer reads.

    mode: see RecallMode. knowledge_base: other than the server's own, several as atlas,firm. texts: whether the answer
    holds the texts of the references that it read. citations: whether its message has annotations, which say what each
    part of it was read from. only_documents: whether an answer that no memory gave becomes a refusal.
    document: of this device, which the question is about as a whole.
    """

    mode: RecallMode | None = Field(default=None, strict=False)
    knowledge_base: str | None = Field(default=None, pattern=rf"^{BASE_NAME}(,{BASE_NAME})*$")
    texts: bool = False
    citations: bool = False
    only_documents: bool = False
    document: str = Field(default="", max_length=4096)


class TextPart(Tolerant):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: str


class RefusalPart(Tolerant):
    """A part of a message in which a model refused to answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What it said."""
        return self.refusal


class ChatMessage(Tolerant):
    """One turn. A tool's result reads as the user's turn, a call as the JSON that it was generated as."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart | RefusalPart] = ""
    tool_calls: list[Tool] = []

    def plain(self) -> dict[str, str]:
        """The message as the chat template expects it."""
        content = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        calls = [_call_text(call.either) for call in self.tool_calls if call.either]
        roles = {"developer": "system", "tool": "user", "function": "user"}
        return {"role": roles.get(self.role, self.role), "content": "\n".join(filter(None, [content, *calls]))}


class ResponseFormat(Tolerant):
    """text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] = {}

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and not isinstance(self.json_schema.get("schema"), dict):
            raise ValueError("json_schema must hold the schema")
        return self


class Drawn(Tolerant):
    """What all requests of an answer have."""

    model: str = ""
    """Any name: there is one model."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    """0 and -1 keep all tokens."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, le=100)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    logit_bias: dict[Annotated[int, Field(ge=0, strict=False)], Annotated[float, Field(ge=-100, le=100)]] = {}
    seed: int | None = None
    """-1 draws at random, as no seed does."""
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] = []
    stream: bool = False
    memory: MemoryOptions = MemoryOptions()


class _Sampled(Drawn):
    max_tokens: TokenLimit | None = None
    stream_options: dict[str, Any] = {}
    n: Literal[1] = 1
    response_format: ResponseFormat = ResponseFormat(type="text")

    def sampling(self, grammars: Grammars) -> SamplingOptions:
        """Options of the SDK, which checks the values; raises InvalidInput for an unsupported schema."""
        known = _Sampled.model_fields.keys() & SamplingOptions.__annotations__.keys()
        options = cast(SamplingOptions, self.model_dump(include=known, exclude_none=True))
        options["top_k"] = max(self.top_k, 0)
        options["citations"] = self.memory.citations
        options["only_documents"] = self.memory.only_documents
        options["seed"] = None if self.seed is None or self.seed == -1 else self.seed % SEEDS
        if self.max_tokens == -1:
            options["max_tokens"] = UNLIMITED
        options["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        if (constraint := self.constraint(grammars)) is not None:
            options["constraint"] = constraint
        return options

    def constraint(self, grammars: Grammars) -> GrammarConstraint | None:
        """What the answer must be; None for free text. Raises InvalidInput for what cannot be used."""
        form = self.response_format
        schemas = {"text": None, "json_object": {"type": "object"}, "json_schema": form.json_schema.get("schema")}
        schema = schemas[form.type]
        return None if schema is None else grammars.of_schema(schema, strict=bool(form.json_schema.get("strict")))


class ChatRequest(_Sampled):
    """POST /v1/chat/completions.

    tools: the model calls one only if `tool_choice` demands it, because it was not tuned to choose among them;
    otherwise it answers in text.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MOST_LOGPROBS)
    tools: list[Tool] = []
    tool_choice: Choice | NamedTool | AllowedChoice = "auto"

    def ignored(self) -> list[str]:
        """See the base class; tools that cannot be called are ignored."""
        unused = ["tools"] if self.tools and not self.callable_tools() else []
        return [*super().ignored(), *unused]

    def callable_tools(self) -> list[Function | Custom]:
        """The tools of which the answer must call one; empty for a text answer. Raises InvalidInput."""
        return callable_among(self.tools, self.tool_choice)

    def custom_tool(self) -> Custom | None:
        """The custom tool that is the only one to call: its input is the answer. Raises InvalidInput."""
        tools = self.callable_tools()
        custom = [tool for tool in tools if isinstance(tool, Custom)]
        if len(tools) == 1:
            return custom[0] if custom else None
        if any(tool.format.grammar for tool in custom):
            raise InvalidInput("a custom tool with a grammar cannot be chosen among others: name it in tool_choice")
        return None

    def constraint(self, grammars: Grammars) -> GrammarConstraint | None:
        """See the base class; of a call if one is required."""
        if custom := self.custom_tool():
            return grammars.of_syntax(custom.format.grammar) if custom.format.grammar else None
        if tools := self.callable_tools():
            strict = all(isinstance(tool, Function) and tool.strict for tool in tools)
            return grammars.of_schema(call_schema(tools), strict=strict)
        return super().constraint(grammars)

    def called(self, text: str) -> Function | Custom | None:
        """The call that a complete answer is; None if it is text."""
        if custom := self.custom_tool():
            return Custom(name=custom.name, input=text)
        if not self.callable_tools():
            return None
        call = json.loads(text)
        if "input" in call:
            return Custom(name=call["name"], input=call["input"])
        return Function(name=call["name"], arguments=json.dumps(call["arguments"], ensure_ascii=False))

    def sampling(self, grammars: Grammars) -> SamplingOptions:
        """See the base class; `max_completion_tokens` overrides `max_tokens`."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidInput("top_logprobs needs logprobs: true")
        options = super().sampling(grammars)
        options["logprobs"] = self.top_logprobs if self.logprobs else None
        if (limit := self.max_completion_tokens) is not None:
            options["max_tokens"] = UNLIMITED if limit == -1 else limit
        return options

    def conversation(self) -> list[dict[str, str]]:
        """The messages as the chat template expects them; a last assistant message is continued."""
        messages = [m.plain() for m in self.messages]
        if tools := self.callable_tools():
            shown = json.dumps([tool.model_dump(exclude_unset=True) for tool in tools])
            instruction = f"Call one of these functions, in JSON with name and arguments: {shown}"
            if self.custom_tool():
                instruction = f"Reply with the input of this tool alone: {shown}"
            elif any(isinstance(tool, Custom) for tool in tools):
                instruction = f"Call one of these tools, in JSON with name and arguments, or input: {shown}"
            messages.insert(0, {"role": "system", "content": instruction})
        return messages


class CompletionRequest(_Sampled):
    """POST /v1/completions: continues a text without the chat template. echo: the answer begins with the text."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)]
    echo: bool = False

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


class Correction(Exact):
    """PUT /v1/local/memories. text: of the memory, without the document's title; empty removes it."""

    text: str


class EmbeddingRequest(Tolerant):
    """POST /v1/embeddings."""

    model: str = ""
    input: str | Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    """Must equal the embedder's dimension if given: vectors cannot be shortened."""

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.input] if isinstance(self.input, str) else self.input
