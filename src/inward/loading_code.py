"""Functions from a file of the user's."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from inward.errors import UnknownName, UsageError


def function_of(path: Path, name: str, kind: str) -> object:
    """Run a Python file and return a function of it.

    Args:
        path: of the file.
        name: of the function.
        kind: what it is for, in messages.

    Raises:
        UsageError: there is no such file, or it cannot be imported.
        UnknownName: it has no such function.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r} to take the {kind} {name!r} from")
    spec = spec_from_file_location(f"inward_{kind}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} is no Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError) as error:
        raise UsageError(f"{str(path)!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and callable(v)]
        raise UnknownName(f"function in {path.name}", name, own)
    return getattr(module, name)
