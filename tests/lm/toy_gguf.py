"""Tiny GGUF files: a random Llama of two blocks with a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from tokenizers import pre_tokenizers

WIDTH, INNER, BLOCKS, HEADS, KV_HEADS = 32, 64, 2, 4, 2
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ Ġ", "Ċ Ċ", "Ġ t", "h e"]
CONFIG = {
    "model_type": "llama",
    "vocab_size": 256 + len(SPECIALS) + len(MERGES),
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def write_gguf(path: Path, *, architecture: str = "llama", rule: str = "smollm", seed: int = 0) -> Path:
    """Write a file that transformers can read, unless `architecture` is none that it knows."""
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(BLOCKS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    _add_tokenizer(writer, rule)
    draw = np.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        values = draw.standard_normal(shape) / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.1 * draw.standard_normal(shape)
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", CONFIG["vocab_size"], WIDTH)
    for block in range(BLOCKS):
        kv = WIDTH // HEADS * KV_HEADS
        for name, rows, columns in (("attn_q", WIDTH, WIDTH), ("attn_k", kv, WIDTH), ("attn_v", kv, WIDTH), ("attn_output", WIDTH, WIDTH)):
            add(f"blk.{block}.{name}.weight", rows, columns)
        for name, rows, columns in (("ffn_gate", INNER, WIDTH), ("ffn_up", INNER, WIDTH), ("ffn_down", WIDTH, INNER)):
            add(f"blk.{block}.{name}.weight", rows, columns)
        add(f"blk.{block}.attn_norm.weight", WIDTH)
        add(f"blk.{block}.ffn_norm.weight", WIDTH)
    add("output_norm.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, rule: str) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIALS, *letters, *(merge.replace(" ", "") for merge in MERGES)]
    types = [TokenType.CONTROL] * len(SPECIALS) + [TokenType.NORMAL] * (len(letters) + len(MERGES))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
