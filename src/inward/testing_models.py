"""Tiny random models of many families, with a byte tokenizer: fast, seeded, and not degenerate.

Their text means nothing. What they are for is arithmetic: caches, hooks, batches, tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

Family: TypeAlias = Literal["llama", "gemma2", "gemma3", "qwen2", "qwen3", "qwen3_moe", "mistral", "olmo2", "phi3", "gpt_neox"]
FAMILIES: tuple[Family, ...] = get_args(Family)

SPECIALS = ("<bos>", "<eos>", "<pad>", "<end_of_turn>")
"""Ids 256 … 259; bytes are their own ids."""
BOS, EOS, PAD, END_OF_TURN = range(256, 260)
VOCAB = 260

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}"
    "{% if not loop.last or m['role'] != 'assistant' %}<end_of_turn>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

_MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "mlp_only_layers": [1]}
_SLIDING = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
_SPECIFIC: Mapping[Family, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "gemma2": ("gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 4}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 4, "layer_types": _SLIDING},
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 16, **_MOE}),
    "mistral": ("mistral", {"sliding_window": 8}),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.5}),
}


class TinyModel(NamedTuple):
    """A model and its tokenizer."""

    model: Any
    tokenizer: PreTrainedTokenizerFast


def tiny_tokenizer(*, chat: bool = False) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose ids are bytes; it puts one `<bos>` in front, and `chat` gives it a template."""
    alphabet = _byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, model_max_length=4096, clean_up_tokenization_spaces=False)
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_model(family: Family = "llama", *, seed: int = 0, chat: bool = False, **overrides: Any) -> TinyModel:
    """Build a random model of a family: 2 blocks (4 where windows alternate), width 32, fp32 on the CPU.

    Args:
        family: one of `FAMILIES`.
        seed: of the weights; equal seeds give equal weights.
        chat: give the tokenizer a chat template and make `<end_of_turn>` an end token too.
        overrides: fields of the family's configuration, such as `use_parallel_residual=False`.
    """
    kind, specific = _SPECIFIC[family]
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": BOS,
        "eos_token_id": [EOS, END_OF_TURN] if chat else EOS,
        "pad_token_id": PAD,
        "tie_word_embeddings": False,
        **specific,
        **overrides,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields), dtype=torch.float32).eval()
    _fill(model, seed)
    return TinyModel(model, tiny_tokenizer(chat=chat))


def _fill(model: Any, seed: int) -> None:
    """Give every matrix unit gain, so that outputs depend on the whole prompt and entropies are neither 0 nor log V."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=draw)
            if "norm" in name and name.endswith("weight"):
                weight.add_(0.1 * noise)  # around the family's own neutral value, which is 1, or 0 in Gemma
            elif weight.dim() == 1:
                weight.copy_(0.1 * noise)
            elif "embed_tokens" in name or "embed_in" in name:
                weight.copy_(noise)
            elif "lm_head" in name or "embed_out" in name:
                weight.copy_(3.0 * noise / weight.shape[-1] ** 0.5)
            else:
                weight.copy_(1.5 * noise / weight.shape[-1] ** 0.5)


def _byte_alphabet() -> list[str]:
    """Return the letter by which byte-level tokenizers write each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
