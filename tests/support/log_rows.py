"""Rows of logs of one's own, and files of them."""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from replay_pools.base.errors import InputError
from replay_pools.logs.importing import CheckedLog, check_log

Rows = list[dict[str, Any]]


def passes(*orders: str, size: int = 4, **columns: Callable[[int, str, int], Any]) -> Rows:
    """Passes over prompts of one letter each, in these orders, with `size` answers to each prompt.

    Args:
        size: answers to a prompt.
        **columns: {column: its value by number of the pass, prompt, and place in the group}.
    """
    return [
        {"prompt": prompt, "completion": f"{'abc'[number % 3]}{i}", "reward": float((i + number) % 2)}
        | {name: value(number, prompt, i) for name, value in columns.items()}
        for number, order in enumerate(orders)
        for prompt in order
        for i in range(size)
    ]


def row(i: int = 0, **changes: Any) -> dict[str, Any]:
    """The row of a labelled answer; a change to None takes a column away."""
    fields = {"prompt": "Add 1 and 2.", "completion": f"{i}", "reward": float(i % 2), "hacked": False, "gt_pass": True}
    return {name: value for name, value in (fields | changes).items() if value is not None}


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """JSON lines as Python's json writes them: with a bare NaN."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def folder_of(path: Path, files: Mapping[str, Rows | bytes]) -> Path:
    """A folder of files: of rows or of bytes."""
    for name, content in files.items():
        if isinstance(content, bytes):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        else:
            lines(path / name, content)
    return path


def sizes(log: CheckedLog) -> list[int]:
    """The number of rollouts in each group, sorted."""
    return sorted(map(len, log.groups))


def refused(source: Any, **options: Any) -> list[str]:
    """The lines with which a log is refused, without a model."""
    with pytest.raises(InputError) as error:
        check_log(source, **options)
    return str(error.value).splitlines()


def read_as(source: Any, expected: Any, **options: Any) -> None:
    """Check what a log is read as: the sizes of its groups, or what its refusal names."""
    if isinstance(expected, str):
        assert expected in "\n".join(refused(source, **options))
    else:
        assert sizes(check_log(source, **options)) == expected
