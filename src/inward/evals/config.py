"""What a run is: one YAML file, or flags that say the same. The structs below are the schema, the documentation and the check.

```yaml
model: demo                      # folder, GGUF file or hub id
strategies:
  - no-retrieval
  - name: gated(mean-nll)
    options: {threshold: 0.47}
settings:                        # optional: every strategy runs once with each of them
  - {label: k3, options: {k: 3}}
data:
  - {name: nq, path: nq.jsonl, index: nq-index, limit: 150}
```
Relative paths are relative to the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inward.errors import UnknownName, UsageError


class DataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of questions."""

    path: str
    """A file of questions, or a BEIR folder."""
    name: str = ""
    """Of the run's folder; default: the file's name."""
    format: str | None = None
    columns: dict[str, str] | None = None
    split: str | None = None
    index: str | None = None
    """Where its passages are; default: the run's index."""
    limit: int | None = None
    sample_seed: int | None = None
    ids_file: str | None = None


class StrategyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strategy and its options."""

    name: str
    label: str = ""
    """Of the run's folder and the report; default: the name."""
    options: dict[str, Any] = {}


class SettingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that every strategy runs with once more, those that it has."""

    label: str
    options: dict[str, Any] = {}


class SuiteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strategies x data sets x settings."""

    strategies: list[StrategyConfig]
    data: list[DataConfig]
    settings: list[SettingConfig] = []
    model: str = "demo"
    model_options: dict[str, Any] = {}
    """What `load_lm` takes besides the name: dtype, revision, device_map, chat_template, ..."""
    index: str = "demo"
    out: str = "runs"
    """Folder of the runs: one folder a run, OUT/DATA/STRATEGY."""
    concurrency: int = 64
    """Questions worked on at once."""
    seed: int = 0
    limit: int | None = None
    sample_seed: int = 0
    ids_file: str | None = None


_LISTS: dict[str, type[msgspec.Struct]] = {"strategies": StrategyConfig, "data": DataConfig, "settings": SettingConfig}
_ALONE = {"strategies": "name", "data": "path"}
"""Lists whose items may be a text alone, and the field that it is."""
_EXAMPLE = {"strategies": "no-retrieval, single-step", "data": "questions.jsonl", "settings": "{label: k3, options: {k: 3}}"}
_PATHS = ("path", "ids_file")
_NAME = re.compile(r"[^\w.()+-]+")


def load_config(path: str | Path | None, changes: Mapping[str, Any]) -> SuiteConfig:
    """Read a configuration and put `changes` over it.

    Args:
        path: a YAML or JSON file; None for none.
        changes: fields of `SuiteConfig` that win over the file's, as plain values; None is no change.

    Raises:
        UsageError: there is no such file, it is no YAML, a value is of the wrong type or missing; the message names the key.
        UnknownName: a key that does not exist, with a suggestion.
    """
    plain: dict[str, Any] = {}
    if path is not None:
        plain = _read(Path(path))
        _resolve_paths(plain, Path(path).parent)
    plain |= {name: value for name, value in changes.items() if value is not None}
    for name in _LISTS:
        if not isinstance(plain.get(name, []), list):
            raise UsageError(f"{name} is a list, such as [{_EXAMPLE[name]}], got {plain[name]!r}")
    for name, field in _ALONE.items():
        if isinstance(items := plain.get(name), list):
            plain[name] = [{field: item} if isinstance(item, str) else item for item in items]
    _check_keys(plain, SuiteConfig, "the configuration")
    for name, kind in _LISTS.items():
        for place, item in enumerate(plain.get(name) or ()):
            _check_keys(item, kind, f"{name}[{place}]")
    try:
        config = msgspec.convert(plain, SuiteConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"the configuration: {error}") from error
    if config.concurrency < 1:
        raise UsageError(f"concurrency must be at least 1, got {config.concurrency}")
    if not config.strategies or not config.data:
        raise UsageError("the configuration names no strategy" if not config.strategies else "the configuration names no data")
    return config


def data_name(data: DataConfig) -> str:
    """Return the name of a data set, fit for a folder."""
    return safe_name(data.name or Path(data.path).name.split(".")[0])


def safe_name(text: str) -> str:
    """Return `text` as the name of a folder."""
    return _NAME.sub("-", text).strip("-.") or "unnamed"


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"no configuration can be read at {str(path)!r} ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(plain, dict):
        raise UsageError(f"{str(path)!r} holds no keys, got {type(plain).__name__}")
    return {key: _unshared(value) for key, value in plain.items()}


def _unshared(value: Any) -> Any:
    """Copy nested values, so that what an anchor names twice is there twice."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def _resolve_paths(plain: dict[str, Any], folder: Path) -> None:
    """Make paths of the file relative to it; a name such as `demo`, with nothing of that name beside the file, stays."""
    data = plain.get("data")
    named = data if isinstance(data, list) else []
    for item in [plain, *(item for item in named if isinstance(item, dict))]:
        for key in (*_PATHS, "out"):
            if isinstance(item.get(key), str):
                item[key] = str(folder / item[key])
        for key in ("index", "model"):
            if isinstance(item.get(key), str) and (folder / item[key]).exists():
                item[key] = str(folder / item[key])
    if named:
        plain["data"] = [str(folder / item) if isinstance(item, str) else item for item in named]
    for name in ("strategies", "settings"):
        for item in items if isinstance(items := plain.get(name), list) else ():
            options = item.get("options") if isinstance(item, dict) else None
            if not isinstance(options, dict):
                continue
            for key in ("prompt", "prober", "threshold"):
                value = options.get(key)
                if isinstance(value, str) and (key == "prompt" or (folder / value).exists()):
                    options[key] = str(folder / value)


def _check_keys(value: Any, kind: type[msgspec.Struct], where: str) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must hold keys ({', '.join(kind.__struct_fields__)}), got {value!r}")
    for key in value:
        if key not in kind.__struct_fields__:
            raise UnknownName(f"key of {where}", str(key), kind.__struct_fields__)
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            kind_name = getattr(field.type, "__name__", str(field.type))
            raise UsageError(f"{where} needs {field.name} ({kind_name}, no default)")
