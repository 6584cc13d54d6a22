"""Rows of logs of one's own, and files of them."""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from extraction.pairs import builtin_pairs
from replay_pools.base.errors import InputError
from replay_pools.logs.importing import CheckedLog, check_log
from replay_pools.pool import BUILTIN, open_pool

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


LOGGED = ("problem_id", "prompt", "completion", "reward", "hacked")


def two_policies(*names: str, groups: int, each: int = 4) -> Rows:
    """Text alone: what two policies answered to the same prompts, `each` times, with columns of these names."""
    rows: Rows = []
    pools = [open_pool(BUILTIN / name).steps[:groups] for name in ("teacher", "base-hinted")]
    for both in zip(*pools, strict=True):
        for one in (one for group in both for one in group[:each]):
            values = (one.problem_id, one.messages, one.completion, one.reward, one.hacked)
            rows.append(dict(zip(names or LOGGED, values, strict=False)))
    return rows


def pair_rows(num: int, *more: str) -> Rows:
    """Rows of built-in pairs that say nothing but what a pair is, and `more` of its fields."""
    keys = {"messages": "prompt", "hack": "hack", "clean": "clean", **{name: name for name in more}}
    return [{key: getattr(one, name) for name, key in keys.items()} for one in builtin_pairs("run_tests")[:num]]


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
