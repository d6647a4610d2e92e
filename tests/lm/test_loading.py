"""Opening models: what is read, what is refused before anything is read, and what the errors say."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import toy_gguf
from safetensors.torch import load_file, save_file

from inward.errors import MissingExtra, ModelError, UnknownName, UsageError
from inward.lm.gguf_header import read_header
from inward.lm.loading import load_pretrained
from inward.lm.source import find_source
from inward.testing_models import BOS, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, saved as transformers saves models."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    model, tokenizer = tiny_model("llama", chat=True)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    path = tmp_path / "copy"
    path.mkdir()
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return toy_gguf.write_gguf(tmp_path / "tiny.gguf")


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([[BOS, 72, 101, 108, 108, 111]])).logits


def edit_json(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- folders ---


def test_a_folder_is_opened_ready_to_run(folder: Path):
    loaded = load_pretrained(folder)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.model.dtype == torch.float32
    assert loaded.generation_config.eos_token_id == [257, 259]
    assert (loaded.name, loaded.chat_template, loaded.notes) == (str(folder), "auto", ())
    assert torch.equal(logits(loaded.model), logits(tiny_model("llama", chat=True).model))


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("bf16", torch.bfloat16)])
def test_dtype_passes_through(folder: Path, dtype: str, expected: torch.dtype):
    assert load_pretrained(folder, dtype=dtype).model.dtype == expected


def test_on_a_cpu_auto_means_float32_whatever_the_file_holds(copy: Path):
    load_pretrained(copy, dtype="bfloat16").model.save_pretrained(copy)
    assert next(iter(load_file(copy / "model.safetensors").values())).dtype == torch.bfloat16
    assert load_pretrained(copy).model.dtype == torch.float32


def test_options_that_mean_nothing_are_refused_by_name(folder: Path):
    with pytest.raises(UnknownName, match="'float23'; did you mean 'float32'"):
        load_pretrained(folder, dtype="float23")
    with pytest.raises(UsageError, match=r"device must be .* got 'gpu'"):
        load_pretrained(folder, device="gpu")
    with pytest.raises(UsageError, match=r"quantization must be .* got '3bit'"):
        load_pretrained(folder, quantization="3bit")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got '/nowhere\.jinja'"):
        load_pretrained(folder, chat_template="/nowhere.jinja")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="sees no CUDA device"):
            load_pretrained(folder, device="cuda:0")


def test_device_map_passes_through(folder: Path):
    loaded = load_pretrained(folder, device_map={"": "cpu"})
    assert torch.equal(logits(loaded.model), logits(load_pretrained(folder).model))


def test_T6_a_missing_pad_token_changes_nothing(copy: Path):
    config = json.loads((copy / "tokenizer_config.json").read_text())
    config.pop("pad_token")
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    edit_json(copy / "config.json", pad_token_id=None)
    loaded = load_pretrained(copy)
    assert loaded.tokenizer.pad_token is None
    assert loaded.model.get_input_embeddings().weight.shape[0] == 260


# --- what is not there, or not whole ---


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", Path("nowhere"), "a/b/c", "missing.gguf"])
def test_a_path_that_does_not_exist_is_named(name: str | Path):
    with pytest.raises(ModelError, match=r"there is no model at '.*(nowhere|a/b/c|missing\.gguf)"):
        load_pretrained(name)


def test_a_hub_id_that_is_not_cached_is_an_error_with_a_remedy_when_offline():
    with pytest.raises(ModelError, match=r"no model 'nobody/nothing' on this machine.*not asked \(offline\).*hf download nobody/nothing"):
        load_pretrained("nobody/nothing", local_files_only=True)
    with pytest.raises(ModelError, match="did you mean 'demo'"):
        load_pretrained("demoo")
    with pytest.raises(ModelError, match=r"no model 'nobody/nothing::x\.gguf' on this machine"):
        load_pretrained("nobody/nothing::x.gguf")


@pytest.mark.parametrize("name", ["", "::x.gguf"])
def test_an_empty_name_is_refused(name: str):
    with pytest.raises(UsageError, match="a model is a folder"):
        load_pretrained(name)


def test_what_is_no_model_is_told_apart(folder: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="is a file; a model is a folder"):
        load_pretrained(folder / "config.json")
    with pytest.raises(ModelError, match="cannot be a hub id"):
        load_pretrained("what is this?")
    with pytest.raises(ModelError, match=r"holds no config\.json: is it the folder of a model"):
        load_pretrained(tmp_path)


def test_a_folder_without_weights_is_refused(copy: Path):
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no weights \(\*\.safetensors\)"):
        load_pretrained(copy)


def test_a_folder_that_holds_a_gguf_file_says_how_to_name_it(gguf: Path):
    with pytest.raises(ModelError, match=r"::tiny\.gguf'"):
        load_pretrained(gguf.parent)


@pytest.mark.parametrize("keep", [8, 500, 40_000])
def test_weights_that_were_cut_off_are_an_error(copy: Path, keep: int):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match="cannot be opened"):
        load_pretrained(copy)


def test_weights_that_lack_a_tensor_are_an_error_and_not_random(copy: Path):
    tensors = load_file(copy / "model.safetensors")
    lost = tensors.pop("model.layers.1.mlp.up_proj.weight")
    assert lost.numel()
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensors, such as 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_pretrained(copy)


def test_weights_of_another_shape_are_an_error(copy: Path):
    edit_json(copy / "config.json", intermediate_size=48)
    with pytest.raises(ModelError, match="cannot be opened"):
        load_pretrained(copy)


def test_a_broken_configuration_is_an_error(copy: Path):
    (copy / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json' cannot be read"):
        load_pretrained(copy)


def test_an_encoder_decoder_is_refused(copy: Path):
    (copy / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ModelError, match=r"\(t5\) is no causal language model"):
        load_pretrained(copy)


def test_a_tokenizer_that_knows_more_tokens_than_the_model_is_noted(copy: Path):
    edit_json(copy / "config.json", vocab_size=260)
    loaded = load_pretrained(copy)
    loaded.tokenizer.add_tokens(["extra"])
    loaded.tokenizer.save_pretrained(copy)
    assert "knows 261 tokens and the model 260" in load_pretrained(copy).notes[0]


# --- code is never run ---


class Bomb:
    """What a hostile pickle does when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_weights_that_may_hold_code_are_not_read_without_leave(copy: Path, tmp_path: Path):
    tensors = load_file(copy / "model.safetensors")
    torch.save(tensors, copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"'pytorch_model\.bin', a format that can run code.*allow_unsafe_weights=True"):
        load_pretrained(copy)
    loaded = load_pretrained(copy, allow_unsafe_weights=True)
    assert torch.equal(logits(loaded.model), logits(tiny_model("llama", chat=True).model))


def test_a_pickle_beside_safetensors_is_not_touched(copy: Path, tmp_path: Path):
    exploded = tmp_path / "exploded"
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(exploded)))
    load_pretrained(copy)
    load_pretrained(copy, allow_unsafe_weights=True)
    assert not exploded.exists()


def test_an_architecture_that_exists_only_as_code_is_refused_and_the_code_not_run(copy: Path, tmp_path: Path):
    ran = tmp_path / "ran"
    (copy / "modeling_own.py").write_text(f"open({str(ran)!r}, 'w')\nclass OwnConfig: ...\nclass OwnModel: ...\n")
    auto_map = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    edit_json(copy / "config.json", model_type="own_architecture", auto_map=auto_map)
    with pytest.raises(ModelError, match=r"needs code from its repository \(modeling_own\.OwnConfig.*inward runs none.*'own_architecture'"):
        load_pretrained(copy)
    edit_json(copy / "config.json", model_type="llama")
    loaded = load_pretrained(copy)  # transformers has its own class for this one
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert not ran.exists()


# --- GGUF ---


def test_a_gguf_file_gives_the_model_that_is_in_it(gguf: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="inward"):
        loaded = load_pretrained(gguf)
    assert loaded.model.dtype == torch.float32
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert "packed weights become 0.00 GB of memory in float32" in caplog.text
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    raw = toy_gguf.np.random.default_rng(0).standard_normal((toy_gguf.CONFIG["vocab_size"], toy_gguf.WIDTH)) / toy_gguf.WIDTH**0.5
    assert torch.equal(loaded.model.get_input_embeddings().weight, torch.tensor(raw, dtype=torch.float32))
    loaded.model.save_pretrained(gguf.parent / "again")  # nothing of the quantiser is left


def test_a_gguf_file_can_be_named_in_three_ways(gguf: Path):
    names = [find_source(*arguments, None) for arguments in ((gguf, None), (f"{gguf.parent}::tiny.gguf", None), (gguf.parent, "tiny.gguf"))]
    assert len({(source.place, source.gguf, source.is_local, source.offline) for source in names}) == 1
    with pytest.raises(UsageError, match=r"gguf_file='b\.gguf'"):
        find_source("x::a.gguf", "b.gguf", None)
    with pytest.raises(ModelError, match=r"no file 'other\.gguf' .*GGUF files there: tiny\.gguf"):
        find_source(gguf.parent, "other.gguf", None)


def test_E5_an_unknown_architecture_is_refused_before_anything_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import transformers

    path = toy_gguf.write_gguf(tmp_path / "odd.gguf", architecture="quux")
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *a, **k: pytest.fail("went on"))
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("allocated"))
    with pytest.raises(ModelError, match=r"architecture 'quux'.*it reads: .*gemma3.*llama.*qwen3"):
        load_pretrained(path)


def test_E5_a_tokenizer_rule_that_transformers_lacks_is_put_right_or_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    right = load_pretrained(toy_gguf.write_gguf(tmp_path / "right.gguf", rule="smollm"))
    text = "a  2024\n\n1"
    assert right.tokenizer.tokenize(text) == ["a", "ĠĠ", "2", "0", "2", "4", "ĊĊ", "1"]
    assert "digits apart" in right.notes[1]
    plain = load_pretrained(toy_gguf.write_gguf(tmp_path / "plain.gguf", rule="gpt-2"))
    assert plain.tokenizer.tokenize(text) == ["a", "Ġ", "Ġ", "2", "0", "2", "4", "Ċ", "Ċ", "1"]
    assert len(plain.notes) == 1
    with caplog.at_level(logging.WARNING, logger="inward"):
        odd = load_pretrained(toy_gguf.write_gguf(tmp_path / "odd.gguf", rule="never-seen"))
    assert "'never-seen' is unknown here" in odd.notes[1]
    assert "'never-seen' is unknown here" in caplog.text


def test_a_gguf_file_that_was_cut_off_or_is_none_is_an_error(gguf: Path, tmp_path: Path):
    whole = gguf.read_bytes()
    assert read_header(gguf).size <= len(whole)
    for keep in (3, 30, 3000, len(whole) - 200):
        gguf.write_bytes(whole[:keep])
        with pytest.raises(ModelError, match=r"is no whole GGUF file|was cut off"):
            load_pretrained(gguf)
    gguf.write_bytes(b"not a model at all, but long enough to be looked into")
    with pytest.raises(ModelError, match="it begins with b'not '"):
        load_pretrained(gguf)
    gguf.write_bytes(b"")
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        load_pretrained(gguf)


def test_quantization_of_a_gguf_file_is_refused(gguf: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", sys)
    with pytest.raises(UsageError, match="cannot be combined with a GGUF file"):
        load_pretrained(gguf, quantization="8bit")


def test_progress_bars_are_for_terminals(folder: Path, gguf: Path, capfd: pytest.CaptureFixture[str]):
    from transformers.utils import logging as bars

    load_pretrained(folder)
    load_pretrained(gguf)
    assert "it/s" not in "".join(capfd.readouterr())
    assert bars.is_progress_bar_enabled()  # left as it was


# --- adapters ---


def save_adapter(model, path: Path, *, kind: str = "LORA") -> None:
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft calls what transformers is about to rename
        wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    wrapped.save_pretrained(path)
    if kind != "LORA":
        edit_json(path / "adapter_config.json", peft_type=kind)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_adapter(tiny_model("llama", chat=True).model, tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_is_merged_and_the_blocks_stay_in_place(folder: Path, adapter: Path):
    from inward.lm.adapters import apply_adapter

    loaded = load_pretrained(folder, adapter=adapter)
    beside = apply_adapter(load_pretrained(folder).model, adapter, merge=False).model
    assert any("lora" in name for name, _ in beside.named_modules())
    assert type(beside).__name__ == "LlamaForCausalLM"
    assert torch.allclose(logits(loaded.model), logits(beside), atol=1e-4)
    assert not torch.allclose(logits(loaded.model), logits(load_pretrained(folder).model), atol=1e-2)
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert not any("lora" in name for name, _ in loaded.model.named_modules())
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert "merged into the weights" in loaded.notes[-1]


def test_an_adapter_that_does_not_fit_is_refused(folder: Path, adapter: Path, tmp_path: Path):
    save_adapter(tiny_model("llama", hidden_size=64).model, tmp_path / "wide")
    with pytest.raises(ModelError, match="does not fit the model"):
        load_pretrained(folder, adapter=tmp_path / "wide")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"'adapter_model\.bin', a format that can run code"):
        load_pretrained(folder, adapter=adapter)


def test_what_is_no_lora_adapter_is_refused(folder: Path, adapter: Path):
    edit_json(adapter / "adapter_config.json", peft_type="PROMPT_TUNING")
    with pytest.raises(ModelError, match="kind 'PROMPT_TUNING'; only LORA"):
        load_pretrained(folder, adapter=adapter)
    with pytest.raises(ModelError, match=r"holds no adapter_config\.json"):
        load_pretrained(folder, adapter=folder)
    with pytest.raises(ModelError, match="it is an adapter; load its base model with adapter="):
        load_pretrained(adapter)


def test_an_adapter_that_lacks_tensors_is_refused(folder: Path, adapter: Path):
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, file)
    with pytest.raises(ModelError, match="does not fit the model"):
        load_pretrained(folder, adapter=adapter)


# --- optional packages ---


@pytest.mark.parametrize(
    ("package", "options", "line"),
    [
        ("bitsandbytes", {"quantization": "4bit"}, r"pip install 'inward\[quantized\]'"),
        ("accelerate", {"device_map": "auto"}, r"pip install 'inward\[device-map\]'"),
        ("peft", {"adapter": "."}, r"pip install 'inward\[lora\]'"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(folder: Path, monkeypatch, package: str, options: dict, line: str):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=line):
        load_pretrained(folder, **options)


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_package_for_gguf_is_named(gguf: Path, monkeypatch: pytest.MonkeyPatch, package: str):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"GGUF file.*pip install 'inward\[gguf\]'"):
        load_pretrained(gguf)


def test_N2_a_package_that_is_there_but_broken_says_what_is_wrong_with_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bitsandbytes.py").write_text("raise OSError('libcudart.so.99: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bitsandbytes", raising=False)
    with pytest.raises(MissingExtra, match=r"libcudart\.so\.99: cannot open.*pip install 'inward\[quantized\]'") as caught:
        load_pretrained(folder, quantization="8bit")
    assert isinstance(caught.value.__cause__, OSError)


# --- connections, and the hub's cache ---

NO_NETWORK = """
import socket
tried = []
def refuse(*args, **kwargs):
    tried.append(args)
    raise OSError("a connection was attempted")
socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
import sys, torch
torch.set_num_threads(1)
from inward.lm.loading import load_pretrained
from inward.lm.encode import Encoder
from inward.types import Message
for name in sys.argv[1:]:
    place, _, adapter = name.partition("+")
    loaded = load_pretrained(place, adapter=adapter or None)
    encoder = Encoder(loaded.tokenizer, generation_config=loaded.generation_config)
    ids = encoder.encode((Message("user", "Who?"), Message("assistant", "It")))
    encoder.decode(loaded.model.generate(torch.tensor([ids]), max_new_tokens=2, do_sample=False)[0].tolist())
assert not tried, tried
print("no attempt")
"""


@pytest.mark.parametrize("offline", ["1", "0"])
def test_W3_local_models_make_no_connection(folder: Path, gguf: Path, adapter: Path, offline: str):
    environment = {**os.environ, "HF_HUB_OFFLINE": offline, "OMP_NUM_THREADS": "1"}
    names = [str(folder), str(gguf), f"{folder}+{adapter}"]
    command = [sys.executable, "-c", NO_NETWORK, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.stdout.strip() == "no attempt", done.stderr[-2000:]


CACHED = """
import sys
from inward.errors import ModelError
from inward.lm.loading import load_pretrained
for revision in (None, "old"):
    print(load_pretrained("org/tiny", revision=revision).model.config.rms_norm_eps)
print(type(load_pretrained("org/tiny::tiny.gguf").model).__name__)
try:
    load_pretrained("org/tiny", revision="never")
except ModelError as error:
    print("ModelError", "org/tiny" in str(error))
try:
    load_pretrained("org/pickled")
except ModelError as error:
    print("allow_unsafe_weights=True" in str(error))
"""


def test_models_in_the_hubs_cache_open_offline_by_id_and_revision(folder: Path, gguf: Path, tmp_path: Path):
    def cached(repo: str, commit: str, reference: str) -> Path:
        place = tmp_path / "hub" / f"models--org--{repo}"
        snapshot = place / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / reference).write_text(commit)
        for file in folder.iterdir():
            (snapshot / file.name).write_bytes(file.read_bytes())
        return snapshot

    now, old, pickled = cached("tiny", "a" * 40, "main"), cached("tiny", "b" * 40, "old"), cached("pickled", "c" * 40, "main")
    (now / "tiny.gguf").write_bytes(gguf.read_bytes())
    edit_json(old / "config.json", rms_norm_eps=0.5)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    done = subprocess.run([sys.executable, "-c", CACHED], capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.stdout.split() == ["1e-06", "0.5", "LlamaForCausalLM", "ModelError", "True", "True"], done.stderr[-2000:]
