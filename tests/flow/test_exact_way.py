"""With a codec that loses nothing, a memory that went the whole way reads like one that never left the process.

write (torch) -> payload -> gRPC -> ClickHouse -> gRPC -> decode -> slots of the ONNX decoder -> logits
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from edge_client.recall import Recaller
from edge_client.retrieval_client import RetrievalClient
from edge_client.session import EdgeModel
from memory_model import references
from memory_model.bundle import Bundle
from memory_model.chat import prefix_ids
from memory_model.evaluation.conditions import stack_memories
from memory_model.memory import ExplicitMemory
from memory_service.encoder import EncodedReferences, EncoderDescription
from memory_service.identity import WriterIdentity
from tests.edge_client.tiny_bundle import format_of, tiny_bundle, tiny_loaded
from tests.memory_service.running import document, running

FACTS = {"oslo": "Oslo is in the north.", "lima": "Lima is by the sea.", "rome": "Rome has hills."}
QUESTION = "Where is Lima?"


class ExactEncoder:
    """The service's encoder around the tiny model and its exact codec; everything else is the real service."""

    def __init__(self, bundle: Bundle) -> None:
        self.loaded, self.embedder = tiny_loaded(), bundle.embedder()
        self.format = format_of(self.loaded)
        self.never_left: dict[str, ExplicitMemory] = {}
        ids, memory = self.format.identity, self.loaded.config.memory
        self.description = EncoderDescription(
            WriterIdentity(
                ids.model_id, ids.codec_id, ids.memory_format_id, self.embedder.embedder_id, self.embedder.dim
            ),
            memory.memories_per_chunk,
            memory.reference_tokens,
            memory.chunk_tokens,
            json.dumps(self.loaded.config.to_dict()),
        )

    def split(self, text: str, title: str) -> list[str]:
        return references.split(text, title, self.count_tokens, self.description.reference_tokens)

    def count_tokens(self, text: str) -> int:
        return self.loaded.tokenizer.count(text)

    def encode(self, texts: Sequence[str]) -> EncodedReferences:
        memories = self.loaded.writer.write(texts)
        self.never_left |= dict(zip(texts, memories, strict=True))
        return EncodedReferences(self.embedder.embed(texts), self.format.encode(memories))

    def check_payload(self, payload: bytes) -> None:
        self.format.check(payload)


def test_logits_are_unchanged_by_the_whole_way(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path)
    encoder = ExactEncoder(bundle)
    loaded = encoder.loaded
    with running(tmp_path / "store", encoder) as (client, server):
        client.ingest("default", *[document(key, text) for key, text in FACTS.items()])
        wire = RetrievalClient(
            f"127.0.0.1:{server.port}", "default", bundle.identity, bundle.manifest.embedder_id, deadline_s=60
        )
        [recall] = Recaller(bundle.embedder(), wire, bundle.memory_format).recall([QUESTION])
        wire.close()
    assert not recall.error
    assert sorted(read.document_key for read in recall.read) == sorted(FACTS)
    never_left = [encoder.never_left[FACTS[read.document_key]] for read in recall.read]
    for went, stayed in zip(recall.memories, never_left, strict=True):
        np.testing.assert_array_equal(went.keys, stayed.keys)
        np.testing.assert_array_equal(went.values, stayed.values)

    # The device's logits with the memories that travelled, against torch's with those that stayed.
    prefix = prefix_ids(loaded.tokenizer, loaded.config.memory)
    text = loaded.tokenizer.encode(QUESTION)[:16]
    first = len(prefix) + loaded.config.memory.reference_tokens
    with EdgeModel.open(bundle.folder, "127.0.0.1:1") as device:
        without = np.array(device.decoder.run(text, first))
        device.decoder.rewind(len(prefix))
        device.decoder.inject(recall.memories)
        ours = np.array(device.decoder.run(text, first))
    ids = torch.tensor([prefix + text])
    positions = torch.tensor([[*range(len(prefix)), *range(first, first + len(text))]])
    chunk = torch.tensor([[-1] * len(prefix) + [0] * len(text)])
    memory = stack_memories([never_left], loaded)
    with torch.inference_mode():
        hidden, _ = loaded.model.hidden(ids, positions, memory=memory, chunk_BT=chunk)
        theirs = loaded.model.head(hidden[0, -1]).numpy()
    np.testing.assert_allclose(ours[-1], theirs, atol=1e-4)
    assert np.abs(without[-1] - theirs).max() > 1e-2, "the memories must matter, or this test proves nothing"
