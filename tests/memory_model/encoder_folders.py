"""Hugging Face folders of tiny random encoders, saved by transformers itself, with a tokenizer of their kind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers as tf  # not its classes by name, which would take seconds wherever tests are collected
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

VOCABULARY = 300
POSITIONS = 66
TEXTS = ["The capital of Norway is Oslo.", "x", "", "a longer text, " * 3, "Grüße 🎉", "Oslo"]
"""What `expected` gives the vectors of."""


def unigram_tokenizer() -> Tokenizer:
    """A unigram model as XLM-R's tokenizer.json has it: <s> 0, <pad> 1, </s> 2, <unk> 3, "▁" before words."""
    letters = [chr(c) for c in range(33, 127)] + list("äöüß")
    words = ["▁the", "▁of", "▁is", "▁capital", "▁Oslo", "▁longer", "▁text", "▁a", "▁"]
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(piece, -1.0 - n / 100) for n, piece in enumerate([*words, *letters])]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("<mask>", 0.0)], unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def xlm_r() -> tf.PreTrainedModel:
    """BGE-M3's architecture, tiny."""
    torch.manual_seed(0)
    config = tf.XLMRobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
        pad_token_id=1,
        layer_norm_eps=1e-5,
        initializer_range=0.3,
    )
    return tf.XLMRobertaModel(config).eval()


def bert() -> tf.PreTrainedModel:
    """all-MiniLM's architecture, tiny."""
    torch.manual_seed(1)
    config = tf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return tf.BertModel(config).eval()


def save(model: tf.PreTrainedModel, folder: Path, layout: str = "safetensors", pooling: str = "") -> Path:
    """Save the model as safetensors, sharded, bin or sharded-bin; pooling: cls, mean or nothing said."""
    if layout in ("safetensors", "sharded"):
        model.save_pretrained(folder, max_shard_size="20KB" if layout == "sharded" else "1GB")
    else:
        folder.mkdir(parents=True)
        model.config.save_pretrained(folder)
        state = model.state_dict()
        if layout == "bin":
            torch.save(state, folder / "pytorch_model.bin")
        else:
            shards = {name: f"pytorch_model-0000{1 + n % 2}-of-00002.bin" for n, name in enumerate(state)}
            for shard in set(shards.values()):
                torch.save({n: t for n, t in state.items() if shards[n] == shard}, folder / shard)
            (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    unigram_tokenizer().save(str(folder / "tokenizer.json"))
    if pooling:
        say_pooling(folder, **{f"pooling_mode_{pooling}_token" + "s" * (pooling == "mean"): True})
    return folder


def say_pooling(folder: Path, **config: object) -> None:
    """Write 1_Pooling/config.json as sentence-transformers does."""
    flags = dict.fromkeys((f"pooling_mode_{kind}" for kind in ("cls_token", "mean_tokens", "max_tokens")), False)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags | config))


def expected(model: tf.PreTrainedModel, pooling: str, max_tokens: int = 64) -> np.ndarray:
    """Vectors of TEXTS, one text at a time without padding: what transformers and the pooling's definition give."""
    tokenizer = unigram_tokenizer()
    tokenizer.enable_truncation(max_tokens)
    rows = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            hidden = model(input_ids=ids).last_hidden_state[0]
        rows.append(hidden[0] if pooling == "cls" else hidden.mean(0))
    vectors = torch.stack(rows)
    return np.asarray((vectors / vectors.norm(dim=1, keepdim=True)).numpy())
