"""What readers of logs hand on: stored rows, and the table of flat rows that a format makes of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay_pools.errors import Faults, InputError

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One object of a file: a line, an item of an array, a row of a table, or a sample of an archive."""

    path: Path
    where: str  # file and line, for errors
    fields: Fields


@dataclass(frozen=True, slots=True)
class Table:
    """The rollouts of a log as flat rows, one a rollout, and what its format says of their columns."""

    rows: list[StoredRow]
    mapping: dict[str, str]  # {target: column} that the format knows; the rest is guessed
    notes: list[str] = field(default_factory=list)  # choices and repairs, one sentence each


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of log. `read` collects faults and returns what it could read."""

    name: str
    recognises: Callable[[StoredRow], bool]  # by the first row of the log
    read: Callable[[Sequence[StoredRow], Faults], Table]
    cannot_know: str  # one sentence


class LeftOutError(Exception):
    """A row that holds no rollout which could be replayed; its text says why."""


def unfolded(
    rows: Iterable[StoredRow], unfold: Callable[[Fields], Iterable[Fields]], faults: Faults
) -> tuple[list[StoredRow], list[str]]:
    """(flat rows, what was left out and why) of stored rows.

    Args:
        rows: as they were read.
        unfold: the rollouts of one stored object; raises LeftOutError, or InputError at a place within it.
        faults: where InputErrors go.
    """
    flat: list[StoredRow] = []
    left_out: Counter[str] = Counter()
    for row in rows:
        try:
            flat += [StoredRow(row.path, row.where, fields) for fields in unfold(row.fields)]
        except LeftOutError as reason:
            left_out[str(reason)] += 1
        except InputError as error:
            faults.add(
                f"{row.where} {error.where}", error.where, expected=error.expected, found=error.found, fix=error.fix
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
            faults.add(row.where, "shape", expected="the fields of its format", found=found)
    return flat, [f"caution: left out: {reason} ({count} rows)" for reason, count in left_out.items()]


def joined_text(content: Any) -> Any:
    """The text of a message's content that is a list of texts in parts; any other content as it is."""
    if not isinstance(content, list) or not all(isinstance(part, dict) and _is_text_part(part) for part in content):
        return content
    return "".join(part["text"] for part in content)


def _is_text_part(part: Fields) -> bool:
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def has(*names: str) -> Callable[[StoredRow], bool]:
    """Recognises rows that have all of these fields."""
    return lambda row: set(names) <= row.fields.keys()


def plain(mapping: Mapping[str, str], *notes: str) -> Callable[[Sequence[StoredRow], Faults], Table]:
    """A `read` for formats whose rows are flat already."""
    return lambda rows, faults: Table([*rows], dict(mapping), [*notes])
