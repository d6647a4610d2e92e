"""Small tokenizers built from scratch, one per kind that decoders use, and chat templates written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

CORPUS = [
    "Question: Who wrote the play Hamlet? Rationale: Hamlet is a tragedy by William Shakespeare. Answer: William Shakespeare",
    "You are a helpful assistant. The capital of France is Paris, and the river is the Seine.",
    "Passages: [1] (Paris) Paris is the capital of France.\n\n[2] (Lyon) Lyon is a city on the Rhône.",
    "In 1889 the tower was 300.5 metres high; she said: it's theirs, isn't it?\n  indented text",
    "é è ü 東京 中文 日本 🦙 emoji",
] * 3

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = none %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system is not none %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
QWEN3 = (  # strips line breaks off the start of what the assistant said, and writes a non-special added token itself
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' + message['content'].lstrip('\n') + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PHI3 = (  # its control tokens swallow the white space after them
    "{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + message['content'] + '<|end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "gemma": GEMMA, "llama2": LLAMA2, "llama3": LLAMA3, "mistral": MISTRAL, "qwen3": QWEN3, "phi3": PHI3}

SPECIALS = (
    "<unk>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
SWALLOWING = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
PLAIN_ADDED = ("<think>", "</think>", "<table>", "\n\n\n")


def byte_level(*, template: str | None = None, bos: bool = False) -> PreTrainedTokenizerFast:
    """GPT-2's kind: bytes written as letters, text split by a regular expression."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer, template, bos)


def sentencepiece(*, scheme: str = "first", template: str | None = None, bos: bool = True) -> PreTrainedTokenizerFast:
    """Llama-2's kind: words begin with `▁`, unknown characters fall back to bytes, and text begins with a dummy space.

    Args:
        scheme: `"first"` or `"always"` (Metaspace), `"prepend"` (an older normaliser), or `"never"` (Gemma).
        template: chat template.
        bos: whether `<s>` goes in front.
    """
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=160, special_tokens=["<unk>"], limit_alphabet=70, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)

    learnt = json.loads(trained.to_str())["model"]
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for piece in learnt["vocab"]:
        vocab.setdefault(piece, len(vocab))
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in learnt["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    if scheme == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    elif scheme == "never":
        tokenizer.normalizer = replace
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps if scheme == "never" else [*steps, decoders.Strip(" ", 1, 0)])
    return _finish(tokenizer, template, bos)


class SlowBytes(PreTrainedTokenizer):
    """A tokenizer of Python alone: one token per byte of UTF-8, `<s>` in front."""

    vocab_files_names: ClassVar[dict[str, str]] = {}

    def __init__(self, **kwargs) -> None:
        super().__init__(bos_token="<s>", eos_token="</s>", unk_token="<unk>", **kwargs)
        self.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})

    @property
    def vocab_size(self) -> int:
        return 256

    def get_vocab(self) -> dict[str, int]:
        return {chr(byte): byte for byte in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **kwargs) -> list[str]:
        return [chr(byte) for byte in text.encode()]

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return bytes(ord(token) for token in tokens).decode("utf-8", "replace")

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        return [self.bos_token_id, *token_ids_0]


def _finish(tokenizer: Tokenizer, template: str | None, bos: bool) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False, rstrip=True) for text in SWALLOWING])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN_ADDED])
    if bos:
        start = ("<s>", tokenizer.token_to_id("<s>"))
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[start])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
    fast.chat_template = template
    return fast
