"""Messages to token ids by the model's own chat template, and which of these tokens are content.

Only content makes query text. It is tokenized apart from the scaffolding, so a message that contains a special token
cannot end its turn; a space in front of it goes with its first word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from memory3.config import MemoryConfig
from memory3.errors import EmptyConversation, InvalidInput, UnknownRole, UnknownTemplate
from memory3.text.tokenizer import Tokenizer, special_ids, well_formed

ROLES = ("system", "user", "assistant")
_BEGIN, _END = "\ue000", "\ue001"
"""Private-use characters that mark content while the template is rendered."""
_MARKED = re.compile(rf"{_BEGIN}(\d+){_BEGIN}(.*?){_END}", re.DOTALL)
"""A message's number and content: templates may put the system message behind others."""
_THOUGHT = "</think>"
"""End of a model's thoughts. Templates that know it cut answers there, so it is done before they are marked."""

Message = Mapping[str, str]


@dataclass(frozen=True)
class Prompt:
    """Tokens, for each whether it is content, and whether they end in the midst of an answer."""

    ids: list[int]
    content: list[bool]
    begun: bool = False


class ChatTemplate:
    """A Jinja chat template with its tokenizer. Thread-safe once made."""

    def __init__(self, template: str, tokenizer: Tokenizer) -> None:
        """Compile `template` in a sandbox; raises UnknownTemplate if it is none."""
        try:
            self._template = _compiled(template)
        except TemplateError as error:
            raise UnknownTemplate(f"not a chat template: {error}") from error
        self.source, self._thinks = template, _THOUGHT in template
        self.tokenizer = tokenizer

    def prompt(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        generated: Mapping[int, Sequence[int]] | None = None,
    ) -> Prompt:
        """The conversation as tokens.

        generated: by a message's number the tokens that the model generated for it, which are taken as they are.
        With a generation prompt a last message of the assistant is the answer's beginning: its turn stays open.
        Thinking is off where the template offers a choice, and thoughts in answers are left out. What a template does
        not write as it is, such as two messages of one role or a system message, is written in the form of
        `_plainer`. Raises InvalidInput for messages that are none (EmptyConversation, UnknownRole) and UnknownTemplate.
        """
        given, own = _checked(messages), dict(generated or {})
        for number, message in enumerate(given):
            if self._thinks and message["role"] == "assistant" and _THOUGHT in message["content"]:
                message["content"] = message["content"].rpartition(_THOUGHT)[2].strip()
                own.pop(number, None)
        marked = [{**m, "content": f"{_BEGIN}{n}{_BEGIN}{m['content']}{_END}"} for n, m in enumerate(given)]
        begun = add_generation_prompt and given[-1]["role"] == "assistant"
        numbers, contents, between = self._written(marked, add_generation_prompt and not begun)
        for index, number in enumerate(numbers):  # a space and the word behind it are one token
            before = between[index]
            space = self.opening if given[number]["role"] == "assistant" else before[len(before.rstrip(" ")) :]
            if before.endswith(space):
                between[index], contents[index] = before.removesuffix(space), space + contents[index]
        runs: list[tuple[Sequence[int], bool]] = [(self.tokenizer.encode(between[0]), False)]
        for number, content, scaffolding in zip(numbers, contents, between[1:], strict=True):
            tokens = own[number] if number in own else self.encode_content(content)
            runs.append((tokens, given[number]["role"] != "system"))
            runs.append((self.tokenizer.encode_next(scaffolding), False))
        if begun:
            runs.pop()
        ids = [token for tokens, _ in runs for token in tokens]
        return Prompt(ids, [content for tokens, content in runs for _ in tokens], begun)

    def encode_content(self, text: str) -> list[int]:
        """Token ids of the content of a message; special tokens written as text stay text."""
        return self.tokenizer.encode_next(text, literal=True)

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer as a model generates it behind the generation prompt, without the end of its turn."""
        return self.encode_content(self.opening + text)

    @cached_property
    def opening(self) -> str:
        """The white space that the template writes between the generation prompt and an answer (Llama 2, Mistral).

        A model generates it, a space as a part of the answer's first token.
        """
        question = {"role": "user", "content": "question"}
        try:
            asked = self._render([question], True)
            answered = self._render([question, {"role": "assistant", "content": _BEGIN}], False)
        except UnknownTemplate:
            return ""  # it is refused when it is used
        written = answered.partition(_BEGIN)[0]
        opening = written[len(asked) :] if written.startswith(asked) else ""
        return opening if opening.isspace() else ""

    def _written(
        self, marked: Sequence[Message], add_generation_prompt: bool
    ) -> tuple[list[int], list[str], list[str]]:
        """Numbers and contents of the messages as the template writes them, and what is around these, one more.

        Raises UnknownTemplate where it writes the messages in no form.
        """
        refused = None
        for messages in (marked, _plainer(marked), _plainer(marked, system=False)):
            try:
                first, *pieces = _MARKED.split(self._render(messages, add_generation_prompt))
                numbers = [int(number) for number in pieces[::3]]
                if sorted(numbers) == list(range(len(marked))):
                    return numbers, pieces[1::3], [first, *pieces[2::3]]
                raise UnknownTemplate(f"the chat template wrote {len(numbers)} of {len(marked)} messages")
            except UnknownTemplate as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def _render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        bos, eos = map(self.tokenizer.backend.id_to_token, (self.tokenizer.bos_id, self.tokenizer.eos_id))
        try:
            return self._template.render(
                messages=messages,
                tools=None,  # given and empty, as in transformers: some templates only ask whether it is none
                documents=None,
                add_generation_prompt=add_generation_prompt,
                bos_token=bos,
                eos_token=eos,
                enable_thinking=False,
            )
        except Exception as error:  # a template is a program, and may fail in any way
            raise UnknownTemplate(f"the chat template refused the messages: {error}") from error


def end_of_turn(template: str, tokenizer: Tokenizer) -> int | None:
    """The special token that a chat template writes behind an answer; None where it writes none."""
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    try:
        prompt = ChatTemplate(template, tokenizer).prompt(messages, add_generation_prompt=False)
    except UnknownTemplate:
        return None  # it is refused when it is used
    special = set(special_ids(tokenizer.backend).values())
    behind = prompt.ids[len(prompt.ids) - prompt.content[::-1].index(True) :]
    return next((token for token in behind if token in special), None)


def prefix_ids(tokenizer: Tokenizer, memory: MemoryConfig) -> list[int]:
    """Token ids of the modified BOS `<bos>Reference:` before memories and text (paper 3.2)."""
    return [tokenizer.bos_id, *tokenizer.encode(memory.prefix)]


def text_start(prefix: Sequence[int], memory: MemoryConfig) -> int:
    """Position of the first text token: behind the prefix and the positions that all memories share (paper 3.2)."""
    return len(prefix) + memory.reference_tokens


def _plainer(messages: Sequence[Message], *, system: bool = True) -> list[Message]:
    """Messages whose roles alternate: neighbours of one role are one, with a blank line between them.

    A system message that does not open the conversation is of the person's turn behind it; without `system`, one that
    does is, too. Gemma and the first Mistral have no system messages, others take one at most.
    """
    turns: list[Message] = []
    for message in messages:
        role = message["role"]
        opens = not turns or turns[-1]["role"] == "system"
        if role == "system" and not (system and opens):
            role = "user"
        if turns and turns[-1]["role"] == role:
            turns[-1] = {"role": role, "content": f"{turns[-1]['content']}\n\n{message['content']}"}
        else:
            turns.append({"role": role, "content": message["content"]})
    return turns


def _checked(messages: Any) -> list[dict[str, str]]:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidInput("a conversation is a non-empty sequence of {'role': …, 'content': …}")
    if not messages:
        raise EmptyConversation("the conversation is empty: give at least one message {'role': …, 'content': …}")
    result = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise InvalidInput(f"message {number} must have exactly the keys role and content")
        role, content = message["role"], message["content"]
        if role not in ROLES:
            raise UnknownRole(f"message {number}: role must be one of {', '.join(ROLES)}, not {role!r}")
        if not isinstance(content, str):
            raise InvalidInput(f"message {number}: content must be a str, not {type(content).__name__}")
        clean = well_formed(content).replace(_BEGIN, "").replace(_END, "")  # the marks are ours
        result.append({"role": role, "content": clean.strip()})
    return result


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    """Compiled once for all models of a kind: templates and what they are compiled in are cycles of large tables."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
    environment.filters["tojson"] = _as_json
    return environment.from_string(template)


class _Generation(Extension):
    """`{% generation %}` marks generated text for training; here its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter as transformers has it; Jinja's own writes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)
