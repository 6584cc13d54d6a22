"""Completion tables of TRL's GRPOTrainer (`log_completions=True`): one Parquet file a log call."""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from replay_pools.errors import Faults
from replay_pools.logs.columns import TARGETS
from replay_pools.logs.table import Fields, Format, StoredRow, Table, has

LOGGED = ("step", "prompt", "completion", "advantage")
TABLE = re.compile(r"completions_\d+\.\w+")  # the name of a file of TRL
GROUPS = TARGETS["group"].names
# What logs of others have beside these columns. TRL names no groups, and its rewards by their functions.
OTHERS = {*TARGETS["reward"].names, *GROUPS}


def _recognises(row: StoredRow) -> bool:
    return has(*LOGGED)(row) and (TABLE.fullmatch(row.path.name) is not None or not OTHERS & row.fields.keys())


def _read(rows: Sequence[StoredRow], faults: Faults) -> Table:
    kept, num_repeated = _without_repeats(rows)
    rewards = _reward_columns([row.fields for row in kept])
    notes: list[str] = []
    if num_repeated:
        notes.append(f"a batch that was logged again under the next step was left out ({num_repeated} rows)")
    mapping = {"step": "step", "completion": "completion", "advantage": "advantage", "reward": "+".join(rewards)}
    if any(isinstance(row.fields.get("prompt"), str) for row in kept):
        mapping["rendered"] = "prompt"
        notes.append("prompts are texts, which TRL gives to the model as they are (--map prompt=prompt renders them)")
    size = _group_size(kept)
    # A reward function may log the group: its column is found by its name.
    names_groups = any(row.fields.get(name) is not None for row in kept for name in GROUPS)
    if size is None and not names_groups:
        faults.add(
            rows[0].path,
            "groups",
            expected="blocks of num_generations rows with one prompt",
            found="one row a prompt, or blocks of many sizes",
            fix="pass --map group=every:NUM_GENERATIONS, and log without log_unique_prompts",
        )
    elif not names_groups:
        mapping["group"] = f"every:{size}"
        notes.append(f"groups are blocks of {size} rows with one prompt (another size: --map group=every:N)")
    return Table(kept, {target: column for target, column in mapping.items() if column}, notes)


def _without_repeats(rows: Sequence[StoredRow]) -> tuple[list[StoredRow], int]:
    """(rows without the batches that are the one before, number of the others).

    An old batch is written again, whole, under each step until the next is sampled. Single answers may come back.
    """
    kept: list[StoredRow] = []
    before: list[list[Any]] = []
    for _, block in groupby(rows, key=lambda row: (row.path, row.fields.get("step"))):
        batch = [*block]
        marks = [[row.fields.get(name) for name in LOGGED[1:]] for row in batch]
        kept += batch if repr(marks) != repr(before) else []
        before = marks
    return kept, len(rows) - len(kept)


def _reward_columns(rows: Sequence[Fields]) -> list[str]:
    """`reward` where there is one, else the columns of numbers that are no other target: what reward functions paid."""
    reserved = {name for target, entry in TARGETS.items() if target != "reward" for name in entry.names}
    names = dict.fromkeys(name for fields in rows for name in fields)
    numbers = [
        name
        for name in names
        if name not in reserved and name not in LOGGED and _are_numbers(fields.get(name) for fields in rows)
    ]
    return ["reward"] if "reward" in numbers else numbers


def _are_numbers(values: Iterable[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(type(value) in (int, float) for value in present)


def _group_size(rows: Sequence[StoredRow]) -> int | None:
    """The number of generations: the largest number that all blocks of one prompt are multiples of; None if it is 1.

    Blocks of one prompt that stand next to one another are one, so that a smaller one tells the size.
    """
    lengths: list[int] = []
    for _, block in groupby(rows, key=lambda row: (Path(row.path), repr(row.fields.get("prompt")))):
        lengths.append(len([*block]))
    size = math.gcd(*lengths)
    return size if size > 1 else None


TRL = Format(
    name="trl",
    recognises=_recognises,
    read=_read,
    cannot_know=(
        "Token ids and labels (unless a reward function logs them with log_extra), the weights of the rewards, the "
        "options of the chat template, and batches between two log calls."
    ),
)
