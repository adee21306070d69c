"""A whole bundle with random weights, made in a second: byte tokenizer, tiny decoder, tiny BERT, exact codec."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from memory3.codec.codec import ExactCodec
from memory3.codec.payload import ExplicitMemory, MemoryFormat
from memory3.config import MemoryConfig, MemoryHead, ModelConfig
from memory3.files.bundle import MANIFEST, Bundle
from memory3.runtime.answerability import AnswerabilityProbe, query_width
from memory3.text.tokenizer import Tokenizer as LlmTokenizer
from memory_model.export.bundle import export_bundle
from memory_model.models.folder import ModelFolder
from memory_model.models.load import LoadedModel
from tests.memory_model import tiny

SPECIAL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level(special: Sequence[str]) -> Tokenizer:
    """Byte-level BPE of one token a byte, as Llama 3, Qwen and SmolLM have it with merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def byte_tokenizer() -> str:
    """tokenizer.json of one token a byte, and the two ChatML tokens."""
    return str(byte_level(SPECIAL).to_str())


def tiny_config() -> ModelConfig:
    """3 layers, 4 query and 2 KV heads of 8; unequal memory heads; chunks of 16, references of 32 tokens."""
    heads = (MemoryHead(0, 1, 32), MemoryHead(2, 0, 12), MemoryHead(2, 1, 32))
    memory = MemoryConfig(heads, reference_tokens=32, chunk_tokens=16)
    return tiny.tiny_config(query_heads=4, kv_heads=2, mlp_width=64, vocabulary=258, memory=memory)


def tiny_loaded(seed: int = 0, config: ModelConfig | None = None) -> LoadedModel:
    """A loaded model with random weights and a made-up identity that follows from the seed."""
    config = config or tiny_config()
    tokenizer_json = byte_tokenizer()
    tokenizer = LlmTokenizer.from_json(tokenizer_json)
    model_id = f"{seed:02x}" * 32
    folder = ModelFolder(Path("tiny"), "tiny", "", model_id, {}, config.memory, licence="Apache-2.0")
    return LoadedModel(tiny.random_model(config, seed), tokenizer, tokenizer_json, config, model_id, TEMPLATE, folder)


def probe_of(model_id: str, weights: np.ndarray, offsets: Mapping[int, float] | float = 0.0) -> AnswerabilityProbe:
    """A probe with offsets by the number of memories that are read, or one offset."""
    by_number = offsets if isinstance(offsets, Mapping) else {5: offsets}
    numbers, each = np.array([*by_number], np.int32), np.array([*by_number.values()], np.float32)
    return AnswerabilityProbe(model_id, weights, numbers, each)


def probed(
    offsets: Mapping[int, float] | float,
    weights: np.ndarray | None = None,
    leans: Mapping[str, float] | None = None,
    of_requests: np.ndarray | None = None,
) -> LoadedModel:
    """The tiny model with a probe."""
    loaded = tiny_loaded()
    nothing = np.zeros(query_width(loaded.config), np.float32)
    probe = probe_of(loaded.model_id, nothing if weights is None else weights, offsets)
    vars(loaded)["probe"] = replace(probe, leans=leans or {}, of_requests=of_requests)
    return loaded


def tiny_bert(folder: Path, seed: int = 0, dim: int = 16, layers: int = 2) -> Path:
    """A Hugging Face folder of a random BERT: config.json, model.safetensors, tokenizer.json."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    weights = {
        "embeddings.word_embeddings.weight": random(260, dim),
        "embeddings.position_embeddings.weight": random(64, dim),
        "embeddings.token_type_embeddings.weight": random(2, dim),
    }
    norms = ["embeddings.LayerNorm"]
    linears: dict[str, tuple[int, int]] = {}
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linears[f"{at}.attention.{part}"] = (dim, dim)
        linears[f"{at}.intermediate.dense"] = (2 * dim, dim)
        linears[f"{at}.output.dense"] = (dim, 2 * dim)
    for name in norms:
        weights |= {f"{name}.weight": 1 + random(dim), f"{name}.bias": random(dim)}
    for name, shape in linears.items():
        weights |= {f"{name}.weight": random(*shape), f"{name}.bias": random(shape[0])}
    save_file(weights, folder / "model.safetensors")
    config = {
        "model_type": "bert",
        "hidden_size": dim,
        "num_attention_heads": 2,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * dim,
        "vocab_size": 260,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_str(byte_tokenizer())
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    ids = [(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    return folder


def tiny_bundle(
    folder: Path,
    seed: int = 0,
    precision: str = "float32",
    embedder_precision: str = "float32",
    loaded: LoadedModel | None = None,
) -> Bundle:
    """Export it all to `folder`/bundle."""
    codec = folder / "codec.npz"
    loaded = loaded or tiny_loaded(seed)
    ExactCodec(loaded.config.head_dim).save(codec)
    bert = tiny_bert(folder / "bert")
    return export_bundle(
        loaded,
        folder / "bundle",
        precision,
        codec=codec,
        embedder=bert,
        embedder_precision=embedder_precision,
        quiet=True,
    )


def edit_manifest(folder: Path, **changes: object) -> None:
    """Other values in the manifest of a bundle."""
    data = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**data, **changes}))


def format_of(loaded: LoadedModel) -> MemoryFormat:
    """Payloads without loss."""
    return MemoryFormat(loaded.config, loaded.model_id, ExactCodec(loaded.config.head_dim))


def random_memory(config: ModelConfig, seed: int, tokens: int | None = None) -> ExplicitMemory:
    """A memory of random numbers and of random length, rows that it does not own zero."""
    rng = np.random.default_rng(seed)
    tokens = tokens or int(rng.integers(1, config.memory.reference_tokens + 1))
    rows = config.memory.valid_rows(tokens)
    keys = np.zeros((config.memory.budget, config.head_dim), np.float32)
    values = keys.copy()
    keys[rows] = rng.standard_normal((len(rows), config.head_dim))
    values[rows] = rng.standard_normal((len(rows), config.head_dim))
    return ExplicitMemory(keys, values, tokens)
