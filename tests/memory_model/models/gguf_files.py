"""Tiny GGUF files in the layout of llama.cpp's converter, written from Hugging Face folders with the package gguf."""

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers as tf
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.edge_client.tiny_bundle import TEMPLATE, byte_level
from tests.memory_model.models.published import SPECIAL

F32 = GGMLQuantizationType.F32
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
HARD = [
    "",
    " ",
    "Hello's WORLD  123456 I'LL we'Ve",
    "\n\n\t x = 1;  // ünï\r\n\r\n  é ﬁ ǅ",
    "日本語 한국어 العربية ١٢٣ ½ ④",
    "🙂👩‍👩‍👧 e\u0301 \u200b \u00a0 \ufeff",
    "<|im_start|>user\nx<|im_end|> <|im_end|>y <tool>",
    "camelCase HTTPServer /path//to/\n a/b/ …—“q”",
    "   leading and trailing   ",
    "1,234.5678 $5 a_b-c~`^|<=>",
]
"""Texts at which tokenizers differ most easily."""


def write_gguf(
    folder: Path,
    path: Path,
    *,
    kind: GGMLQuantizationType = F32,
    output_kind: GGMLQuantizationType | None = None,
    tokenizer: Tokenizer | None = None,
    pre: str = "gpt-2",
    parts: int = 0,
    fields: dict[str, float | str] | None = None,
    extra: dict[str, np.ndarray] | None = None,
) -> Path:
    """Convert a folder; returns the first file.

    kind: of matrices. output_kind: store a second copy of a tied table. parts: tensors of each part of a split.
    fields: further metadata. extra: further tensors.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=parts)
    _add_shape(writer, config)
    add_tokenizer_fields(writer, tokenizer or byte_level(SPECIAL), pre)
    writer.add_chat_template(TEMPLATE)
    for key, value in (fields or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(key, value)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for file in sorted(folder.glob("*.safetensors")):
        for name, array in load_file(file).items():
            own = names.get_name(name, (".weight", ".bias"))
            projection = name.split(".")[-2]
            if architecture in ("llama", "smollm3") and projection in heads:
                array = permuted(array, heads[projection])
            _add_tensor(writer, own, array, kind)
            if own == "token_embd.weight" and output_kind is not None:
                _add_tensor(writer, "output.weight", array, output_kind)
    for name, array in {**_rope_factors(config), **(extra or {})}.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if not parts else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter interleaves the halves of each head."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def add_tokenizer_fields(writer: gguf.GGUFWriter, tokenizer: Tokenizer, pre: str) -> None:
    """Tokens, kinds, merges or scores of a byte-level or SentencePiece BPE."""
    data = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = {t["content"]: CONTROL if t["special"] else USER_DEFINED for t in data["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    if data["model"].get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        ranks = {merge.replace(" ", ""): -float(n + 1) for n, merge in reversed(list(enumerate(merges)))}
        writer.add_token_scores([ranks.get(token, -1e6) for token in tokens])
        kinds |= {t: BYTE for t in tokens if t.startswith("<0x")} | {"<unk>": UNKNOWN}
        writer.add_unk_token_id(vocabulary["<unk>"])
        ends = vocabulary["<s>"], vocabulary["</s>"]
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(merges or [""])
        ends = vocabulary["<|im_start|>"], vocabulary["<|im_end|>"]
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, NORMAL) for token in tokens])
    writer.add_bos_token_id(ends[0])
    writer.add_eos_token_id(ends[1])


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, kind: GGMLQuantizationType) -> None:
    plain = array.ndim == 1 or kind == F32
    writer.add_tensor(
        name,
        array.astype(np.float32) if plain else gguf.quants.quantize(array, kind),
        raw_dtype=None if plain else kind,
    )


def _rope_factors(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Llama 3's divisors, one frequency after the other."""
    rope = config["rope_parameters"]
    if rope["rope_type"] != "llama3":
        return {}
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    divisors = []
    for n in range(0, width, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (n / width)
        if length < original / high:
            divisors.append(1.0)
        elif length > original / low:
            divisors.append(factor)
        else:
            smooth = (original / length - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": np.array(divisors, np.float32)}


def transformers_own(path: Path) -> tf.PreTrainedTokenizerFast:
    """Of a GGUF file; transformers leaves out the normalizer that its own class of these tokenizers has."""
    found = tf.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if isinstance(found, tf.Qwen2Tokenizer):
        found.backend_tokenizer.normalizer = tf.Qwen2Tokenizer().backend_tokenizer.normalizer
    return found
