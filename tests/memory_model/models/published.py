"""Tiny random checkpoints of every architecture, saved by transformers itself, with a tokenizer of each kind."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.edge_client.tiny_bundle import TEMPLATE, byte_level

VOCABULARY = 320
TEXT = "The capital of France is Paris. Qwen, Llama and Mistral answer 12 questions about it; naïve, 日本語."
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA2 = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ARCHITECTURES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama-2": (tf.LlamaConfig, {"num_key_value_heads": 6, "rope_parameters": _PLAIN}),
    "llama-3": (tf.LlamaConfig, {"rope_parameters": _LLAMA3}),
    "llama, linear scaling": (
        tf.LlamaConfig,
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "mistral": (tf.MistralConfig, {"head_dim": 32, "rope_parameters": _PLAIN, "sliding_window": None}),
    "qwen2": (tf.Qwen2Config, {"tie_word_embeddings": True, "rope_parameters": _PLAIN}),
    "qwen3": (tf.Qwen3Config, {"head_dim": 32, "rope_parameters": {**_PLAIN, "rope_theta": 1000000.0}}),
    "smollm2": (tf.LlamaConfig, {"tie_word_embeddings": True, "rope_parameters": {**_PLAIN, "rope_theta": 100000.0}}),
    "smollm3": (tf.SmolLM3Config, {"rope_parameters": {**_PLAIN, "rope_theta": 2000000.0}}),
    "memory3-2b": (
        tf.LlamaConfig,
        {"head_dim": 80, "num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 400},
    ),
}


def sentence_piece(unigram: bool = False) -> Tokenizer:
    """SentencePiece with byte fallback, as Llama 2 and Mistral have it; or unigram."""
    letters = sorted({*TEXT.replace(" ", "▁"), *"abcdefghijklmnopqrstuvwxyzINST[]/.,?!\n"} - set("日本語"))
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *letters][:VOCABULARY]
    if unigram:
        tokenizer = Tokenizer(models.Unigram([(p, -float(n)) for n, p in enumerate(pieces)], 0, True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    else:
        vocabulary = {p: n for n, p in enumerate(pieces)}
        tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer


def add_tokenizer(folder: Path, tokenizer: Tokenizer | None = None, template: str = TEMPLATE, **settings: Any) -> None:
    """tokenizer.json and tokenizer_config.json."""
    tokenizer = tokenizer or byte_level(SPECIAL)
    named = settings or {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named, "chat_template": template})
    )


def published(folder: Path, name: str, *, seed: int = 0, shard: str = "5GB", **changes: Any) -> Any:
    """Save a random checkpoint of an architecture to `folder`; returns transformers' model, in evaluation mode."""
    kind, own = ARCHITECTURES[name]
    torch.manual_seed(seed)
    model = tf.AutoModelForCausalLM.from_config(kind(**{**_SIZES, **own, **changes})).eval()
    with torch.no_grad():  # norms and biases that matter
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)  # its ids are not this tokenizer's
    add_tokenizer(folder)
    return model
