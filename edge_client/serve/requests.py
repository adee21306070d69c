"""What clients send: OpenAI's fields that mean something here, and ours beside them. The others are ignored by name."""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from typing import Annotated, Any, Literal

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from pydantic import BaseModel, ConfigDict, Field, model_validator

from edge_client.generate.sampling import MOST_LOGPROBS, SamplingOptions
from edge_client.recall.policy import RecallMode
from edge_client.wire.bases import MOST
from memory_model.bundle import Bundle
from memory_model.errors import InvalidInput

BASE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
BaseName = Annotated[str, Field(pattern=BASE_NAME)]
MOST_STOPS = 16
MOST_INPUTS = 256
LONGEST_SCHEMA_BYTES = 64 << 10


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Tolerant(BaseModel):
    """OpenAI's: a field that is not here is ignored, null is as if it were not given."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given

    def ignored(self) -> list[str]:
        """Names of the fields that mean nothing here, such as `store` or `messages.name`."""
        found = [*(self.model_extra or {})]
        for name in type(self).model_fields:
            value = getattr(self, name)
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, _Tolerant):
                    found += [f"{name}.{inner}" for inner in part.ignored()]
        return [*dict.fromkeys(found)]


class MemoryOptions(_Strict):
    """What is read beside the weights.

    mode: see RecallMode. knowledge_base: another than the server's default; knowledge_bases: several.
    provenance: whether the answer names the memories it read; texts: with their references' texts.
    """

    mode: RecallMode | None = None
    knowledge_base: str | None = Field(default=None, pattern=BASE_NAME)
    knowledge_bases: list[BaseName] | None = Field(default=None, min_length=1, max_length=MOST)
    provenance: bool = True
    texts: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> MemoryOptions:
        if self.knowledge_base is not None and self.knowledge_bases is not None:
            raise ValueError("name either knowledge_base or knowledge_bases")
        return self

    @property
    def bases(self) -> str | None:
        """As the SDK names them: "atlas" or "atlas,firm"; None for the server's default."""
        if self.knowledge_bases is None:
            return self.knowledge_base
        return ",".join(sorted(set(self.knowledge_bases)))


class TextPart(_Tolerant):
    """A piece of a message; only text is understood."""

    type: Literal["text"]
    text: str


class ToolCall(_Tolerant):
    """A call that an earlier answer made."""

    function: dict[str, Any] = {}


class ChatMessage(_Tolerant):
    """One turn. A tool's result reads as the user's turn, a call as the JSON that it was generated as."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] = ""
    tool_calls: list[ToolCall] = []

    def plain(self) -> dict[str, str]:
        """As the chat template takes it."""
        content = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        calls = [
            f'{{"name": {json.dumps(call.function.get("name"))}, "arguments": {call.function.get("arguments")}}}'
            for call in self.tool_calls
        ]
        roles = {"developer": "system", "tool": "user", "function": "user"}
        return {
            "role": roles.get(self.role, self.role),
            "content": "\n".join(filter(None, [content, *calls])),
        }


class JsonSchema(_Tolerant):
    """The schema that an answer must satisfy."""

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Tolerant):
    """text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema must hold the schema")
        return self


class StreamOptions(_Tolerant):
    """include_usage: one more chunk at the end that counts tokens."""

    include_usage: bool = False


class _Sampled(_Tolerant):
    model: str = ""
    """Any name: there is one model."""
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] = 1
    response_format: ResponseFormat | None = None
    memory: MemoryOptions = MemoryOptions()

    def sampling(self, grammars: JsonGrammars) -> SamplingOptions:
        """As the SDK takes it, which checks the values; raises InvalidInput for a schema that cannot be used."""
        options: SamplingOptions = {
            "temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop or [], "seed": self.seed,
            "repetition_penalty": self.repetition_penalty, "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty, "logit_bias": self.logit_bias or {},
            "logprobs": self.top_tokens(),
        }  # fmt: skip
        if (most := self.longest()) is not None:
            options["max_tokens"] = most
        if (schema := self.schema_of_answer()) is not None:
            options["constraint"] = grammars.constraint(schema)
        return options

    def schema_of_answer(self) -> dict[str, Any] | None:
        """What the answer must satisfy as JSON; None for any text."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        return form.json_schema.schema_ if form.json_schema else {"type": "object"}

    def longest(self) -> int | None:
        """Tokens of the answer at most; None for the SDK's default."""
        return self.max_tokens

    @abstractmethod
    def top_tokens(self) -> int | None:
        """How many likely tokens stand beside each token; None: not even its own log-probability."""


class ChatRequest(_Sampled):
    """POST /v1/chat/completions.

    tools: the model was not tuned to choose among them, so it calls one only where `tool_choice` makes it: `required`
    or the name of a function. Otherwise it answers in text.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"

    def ignored(self) -> list[str]:
        """As in the base class; tools that cannot be called are ignored."""
        unused = ["tools"] if self.tools and not self.callable_tools() else []
        return [*super().ignored(), *unused]

    def callable_tools(self) -> list[dict[str, Any]]:
        """The functions of which the answer must call one; empty where it is text. Raises InvalidInput."""
        choice = self.tool_choice
        named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
        if named is None and choice not in ("required", "any"):
            return []
        functions = [tool.get("function") or {} for tool in self.tools]
        found = [f for f in functions if f.get("name") and named in (None, f["name"])]
        if not found:
            raise InvalidInput(f"tool_choice wants {named or 'a function'}: give it in tools")
        return found

    def schema_of_answer(self) -> dict[str, Any] | None:
        """A call where one is wanted."""
        if not (functions := self.callable_tools()):
            return super().schema_of_answer()
        calls = []
        for number, function in enumerate(functions):
            # References inside a function's schema count from its own root.
            root = f'"$ref": "#/anyOf/{number}/properties/arguments/'
            arguments = json.dumps(
                {"type": "object", "additionalProperties": False, **(function.get("parameters") or {})}
            )
            properties = {
                "name": {"const": function["name"]},
                "arguments": json.loads(arguments.replace('"$ref": "#/', root)),
            }
            calls.append(
                {
                    "type": "object",
                    "properties": properties,
                    "required": [*properties],
                    "additionalProperties": False,
                }
            )
        return {"anyOf": calls}

    def longest(self) -> int | None:
        """The newer name of max_tokens counts."""
        return self.max_completion_tokens or self.max_tokens

    def top_tokens(self) -> int | None:
        """As in the base class."""
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidInput("top_logprobs needs logprobs: true")
        return (self.top_logprobs or 0) if self.logprobs else None

    def conversation(self) -> list[dict[str, str]]:
        """The messages as the chat template takes them; the assistant's last one is the answer's beginning."""
        messages = [m.plain() for m in self.messages]
        if functions := self.callable_tools():
            told = f"Call one of these functions, in JSON with name and arguments: {json.dumps(functions)}"
            messages.insert(0, {"role": "system", "content": told})
        return messages


class CompletionRequest(_Sampled):
    """POST /v1/completions: a text that is continued as it is."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)]
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)

    def top_tokens(self) -> int | None:
        """As in the base class."""
        return self.logprobs

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


class EmbeddingRequest(_Tolerant):
    """POST /v1/embeddings."""

    model: str = ""
    input: str | Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.input] if isinstance(self.input, str) else self.input


class NewKnowledgeBase(_Strict):
    """POST /v1/knowledge_bases."""

    name: str = Field(pattern=BASE_NAME)
    description: str = Field(default="", max_length=1024)


class JsonConstraint:
    """Permits what can still become JSON of the schema, and then only the end of the turn. One answer's."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def allow(self, logits: np.ndarray) -> np.ndarray:
        """The logits float32 [vocabulary] with -inf where a token is not permitted."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(mask, bitorder="little")[: self._vocabulary].view(bool)
        return np.where(allowed, logits, -np.inf)

    def took(self, token: int) -> None:
        """The token was chosen."""
        self._matcher.consume_token(token)


class JsonGrammars:
    """Makes constraints for the tokenizer of a bundle, which llguidance reads at the first one. Thread-safe."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._vocabulary = bundle, bundle.config.vocabulary
        self._made: LLTokenizer | None = None
        self._lock = threading.Lock()

    def constraint(self, schema: dict[str, Any]) -> JsonConstraint:
        """Raises InvalidInput for a schema that cannot be used."""
        text = json.dumps(schema)
        if len(text) > LONGEST_SCHEMA_BYTES:
            raise InvalidInput(f"the JSON schema has {len(text)} bytes, the limit is {LONGEST_SCHEMA_BYTES}")
        with self._lock:
            if self._made is None:
                end, file = self._bundle.tokenizer.end_of_turn_id, self._bundle.folder / "tokenizer.json"
                self._made = LLTokenizer(str(file), n_vocab=self._vocabulary, eos_token=end)
        try:
            # Without free white space, a small model cannot fill its answer with it.
            grammar = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": False})
        except ValueError as error:
            raise InvalidInput(f"the JSON schema cannot be used: {error}") from error
        if problem := LLMatcher.validate_grammar(grammar, self._made):
            raise InvalidInput(f"the JSON schema cannot be used: {problem}")
        return JsonConstraint(LLMatcher(self._made, grammar), self._vocabulary)
