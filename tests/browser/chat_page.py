"""The page as its reader uses it: what tests do and look at, by role and name."""

import json
from collections.abc import Sequence

from playwright.sync_api import Locator, Page, expect

QUESTION = "What is the total area of Benin?"
ANSWER = "112,622"
# Never SmolLM2's <|endoftext|> and <|im_end|>, and drawn so that no passage is repeated until it ends the answer.
ENDLESS = """() => {
  const asked = window.fetch;
  window.fetch = (path, options = {}) => {
    if (path !== "/v1/chat/completions") return asked(path, options);
    const body = {...JSON.parse(options.body), logit_bias: {0: -100, 2: -100}, temperature: 1.5};
    return asked(path, {...options, body: JSON.stringify(body)});
  };
}"""
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


def question(page: Page) -> Locator:
    return page.get_by_label("Your question")


def ask(page: Page, text: str) -> None:
    question(page).fill(text)
    question(page).press("Enter")


def answer_without_end(page: Page) -> None:
    """Until a reload no answer ends by itself: what stops or leaves one in the midst does not depend on how
    much the model has to say."""
    page.evaluate(ENDLESS)


def answers(page: Page) -> Locator:
    return page.locator("li.assistant .answer")


def last_answer(page: Page) -> Locator:
    return answers(page).last


def wait_until_answered(page: Page, number: int = 1) -> Locator:
    """The answer of that number, complete."""
    answer = answers(page).nth(number - 1)
    expect(answer).to_have_attribute("aria-busy", "false", timeout=90_000)
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    return answer


def ask_and_wait(page: Page, text: str, number: int = 1) -> Locator:
    ask(page, text)
    return wait_until_answered(page, number)


def memories(page: Page) -> Locator:
    return page.get_by_role("complementary", name="Memories read")


def set_settings(page: Page, **values: str) -> None:
    """Set fields of the settings' dialog by their names."""
    page.get_by_role("button", name="Settings").click()
    for name, value in values.items():
        field = page.locator(f"#s-{name}")
        if name == "mode":
            field.select_option(value)
        else:
            field.fill(value)
    page.locator("#settings-dialog").get_by_role("button", name="Done").click()


def chunk_of(query: str, read: Sequence[str]) -> dict[str, object]:
    """A chunk as the server sends it that read the first of these texts and was refused the others."""
    return {
        "chunk": 0,
        "generated": False,
        "state": "fetched",
        "error": "",
        "service_error": "",
        "kept": 0,
        "query": query,
        "blocked_ms": 1,
        "times": {"embed_ms": 1, "call_ms": 2, "server_ms": 1, "decompress_ms": 1, "queue_ms": 0},
        "read": [
            {
                "memory_id": str(n),
                "document_key": text,
                "title": text,
                "chunk_number": n,
                "score": 0.5,
                "text": text,
                "refused": text if n else "",
            }
            for n, text in enumerate(read)
        ],
    }


def citation(answer: str, text: str, read: str, passage: str) -> dict[str, object]:
    """A part of an answer as the server says that it was read from the first memory, whose text is `read`."""
    start, first = answer.index(text), read.index(passage)
    found = {"file_id": "0", "filename": read, "passage": [first, first + len(passage)], "score": 0.5, "quote": passage}
    where = {"start_index": start, "end_index": start + len(text)}
    return {"type": "file_citation", "text": text, **where, "file_citation": found}


def import_messages(page: Page, messages: Sequence[object], title: str = "imported") -> None:
    """Import a conversation of messages as "Export" writes them."""
    content = json.dumps({"title": title, "messages": messages}).encode()
    file = {"name": "turns.json", "mimeType": "application/json", "buffer": content}
    page.locator("#import-file").set_input_files([file])  # type: ignore[list-item]


def import_turns(
    page: Page, *turns: str, read: Sequence[str] = (), title: str = "", annotations: Sequence[object] = ()
) -> None:
    """Import a conversation of alternating turns, the answers with memories of these texts."""
    chunks = [chunk_of(turns[0], read)] if read else []
    messages = [
        {
            "role": ("user", "assistant")[n % 2],
            "content": turn,
            "speed": 10,
            "chunks": chunks,
            "annotations": annotations,
        }
        for n, turn in enumerate(turns)
    ]
    import_messages(page, messages, title or turns[0])
    expect(answers(page)).to_have_count(len(turns) // 2)


# Answers a question by events that the test sends, each when it calls send().
SENT = """() => {
  const asked = window.fetch;
  window.fetch = (path, options = {}) => {
    if (path !== "/v1/chat/completions") return asked(path, options);
    const body = new ReadableStream({ start(stream) {
      const write = (text) => stream.enqueue(new TextEncoder().encode(text));
      window.send = (event) => write(`data: ${JSON.stringify(event)}\\n\\n`);
      window.finish = () => (write("data: [DONE]\\n\\n"), stream.close());
      window.lose = () => stream.error(new TypeError("network error"));
    } });
    return Promise.resolve(new Response(body));
  };
}"""


class Writer:
    """Writes the answers of a page, as the app would."""

    def __init__(self, page: Page) -> None:
        self._page = page
        page.evaluate(SENT)

    def write(self, text: str) -> None:
        """The next part of the answer; returns once it is shown."""
        self._page.wait_for_function("() => window.send")
        self._page.evaluate("(text) => send({ choices: [{ delta: { content: text } }] })", text)
        expect(last_answer(self._page)).to_contain_text(text.strip().splitlines()[-1])

    def finish(self, verdict: str | None = None, **memory: object) -> None:
        """The end of the answer; returns once it is shown."""
        said = {"chunks": [], "without_memory": False, "error": "", "refused": False, "verdict": verdict, **memory}
        ended = {
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "memory": said,
            "timings": {"tokens_per_s": 5, "first_token_ms": 1, "recall_ms": 1},
        }
        self._page.evaluate("(event) => { send(event); finish(); delete window.send; }", ended)
        expect(last_answer(self._page)).to_have_attribute("aria-busy", "false")

    def lose(self) -> None:
        """The connection is lost in the middle of the answer."""
        self._page.evaluate("() => { lose(); delete window.send; }")
        expect(last_answer(self._page)).to_have_attribute("aria-busy", "false")
