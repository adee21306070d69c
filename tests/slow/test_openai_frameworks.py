"""LangChain's and LlamaIndex's OpenAI classes, for real: installed beside this environment, against the server."""

import json
from pathlib import Path

import pytest

from testing.processes import AppProcess
from testing.programs import python_with, ran
from tests.edge_client.tiny_bundle import tiny_bundle

PACKAGES = ("langchain-openai>=1,<2", "llama-index-llms-openai-like>=0.8,<0.9")  # 166 MB

TALK = """
import asyncio, json, sys
from typing import Literal
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

class City(BaseModel):
    "A city."
    name: Literal["Oslo", "Lima"]
    coastal: bool

url, key, found = sys.argv[1], "none", {}
chat = ChatOpenAI(base_url=url, api_key=key, model="gpt-4o-mini", max_tokens=120, temperature=0, max_retries=0)
talk = [SystemMessage("Be brief."), HumanMessage("Hello"), AIMessage("Yes?"), HumanMessage("What is Lima?")]
found["invoke"] = chat.invoke(talk).content
found["stream"] = "".join(piece.content for piece in chat.stream(talk))
found["ainvoke"] = asyncio.run(chat.ainvoke(talk)).content
found["tools"] = chat.bind_tools([City]).invoke(talk).content
for method in ("json_schema", "function_calling"):
    found[method] = chat.with_structured_output(City, method=method).invoke("Name a city").name
embeddings = OpenAIEmbeddings(base_url=url, api_key=key, check_embedding_ctx_length=False)
found["embeddings"] = len(embeddings.embed_query("Lima"))

given = {"api_base": url, "api_key": key, "model": "any", "temperature": 0, "max_retries": 0}
index = OpenAILike(is_chat_model=True, max_tokens=40, **given)
turns = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="What is Lima?")]
found["chat"] = index.chat(turns).message.content
found["stream_chat"] = "".join(piece.delta for piece in index.stream_chat(turns))
found["achat"] = asyncio.run(index.achat(turns)).message.content
plain = OpenAILike(is_chat_model=False, max_tokens=8, **given)
found["complete"] = plain.complete("The code of Lima").text
print(json.dumps(found))
"""


@pytest.mark.slow
def test_langchain_and_llamaindex_talk_to_the_server(tmp_path: Path) -> None:
    python = python_with(tmp_path / "venv", *PACKAGES)
    with AppProcess.start(tmp_path, tiny_bundle(tmp_path).folder, "127.0.0.1:1") as server:
        found = json.loads(ran(python, "-c", TALK, f"{server.url}/v1").splitlines()[-1])
    assert found["invoke"] == found["stream"] == found["ainvoke"] == found["tools"] != ""
    assert {found["json_schema"], found["function_calling"]} <= {"Oslo", "Lima"}
    assert found["embeddings"] > 0
    assert found["chat"] == found["stream_chat"] == found["achat"] != ""
    assert found["complete"]
