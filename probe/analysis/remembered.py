"""What follows from the inner products of a run alone, kept beside its files: draws of directions are what takes long.

    RUN/analysis.json    {"of": hash, "found": {hash of the records: {"permutation 999 0": text, ...}}, "sha256": ...}

`of` is over the run's manifest, which has the hashes of its files, and over the code and the packages that compute. A
file of another hash, or one that is damaged, is left unread and written again. The manifest does not list it.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from probe.records.run import Run
from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json, read_sealed, sha256, write_sealed

FILE = "analysis.json"
Value = TypeVar("Value")


def remembered(run: Run, name: str, kind: Any, make: Callable[[], Value]) -> Value:
    """What `make` gives, from the file beside the run where it has it.

    Args:
        run: whose records and inner products `make` reads, and nothing else that differs between calls of this `name`.
        name: of the result, with its options.
        kind: its type, of dataclasses of numbers and texts.
    """
    path = run.path / FILE
    if not run.path.is_dir():
        return make()
    of, records = sha256(dump_json([run.manifest, _code()])), sha256(dump_json([run.steps, run.samples]))
    found = _read(path, of)
    stored = found.get(records, {})
    if name in stored:
        with suppress(ValidationError):
            return TypeAdapter(kind).validate_python(json.loads(stored[name]))
    value = make()
    # A folder that cannot be written to keeps nothing.
    with suppress(OSError):
        # A text of its own: an open interval ends at infinity, which strict JSON has no number for.
        text = json.dumps(value, default=_plain)
        write_sealed(path, {"of": of, "found": {**found, records: {**stored, name: text}}})
    return value


def _plain(value: Any) -> Any:
    """A dataclass as an object, a number of numpy as one of Python."""
    return asdict(cast(Any, value)) if is_dataclass(value) else value.item()


def _read(path: Path, of: str) -> dict[str, dict[str, str]]:
    """What is stored under a hash; nothing of a damaged file, or of another hash."""
    if not path.is_file():
        return {}
    try:
        table = read_sealed(path)
    except InputError:
        return {}
    return table["found"] if table.get("of") == of else {}


@cache
def _code() -> str:
    """A hash of this room's code and of the packages that it computes with."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    packages = [version(name) for name in ("numpy", "scipy")]
    return sha256(dump_json([[sha256(path.read_bytes()) for path in files], packages]))
