"""The rollouts in the objects of a log: one of an object that is flat, several or none of others."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.logs.columns import NO_COLUMN, parts_of
from replay_pools.logs.sources import Fields, Log, Rows, StoredRow

Unfold = Callable[[Fields], Iterable[Fields]]  # may raise LeftOutError, or InputError at a place within the object


class LeftOutError(Exception):
    """A row that holds no rollout which could be replayed; its text says why."""


def unfold_rows(log: Log, unfold: Unfold) -> None:
    """Replace each row by the rollouts in it; what was left out, and why, becomes a note.

    A column that holds nothing then leaves the mapping, but for the reward, which every log has.
    """
    flat = Rows()
    left_out: Counter[str] = Counter()
    for row in log.rows:
        try:
            for fields in unfold(row.fields):
                flat.append(StoredRow(row.path, row.where, fields))
        except LeftOutError as reason:
            left_out[str(reason)] += 1
        except InputError as error:
            log.faults.note(error.at(f"{row.where} {error.where}"), error.where)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
            log.faults.add(row.where, "shape", expected="the fields of its format", found=found)
    log.rows = flat
    kept = {*flat.filled, NO_COLUMN}
    log.mapping = {name: text for name, text in log.mapping.items() if name == "reward" or parts_of(text) & kept}
    log.notes += [f"caution: left out: {reason} ({count} rows)" for reason, count in left_out.items()]


def joined_text(content: Any) -> Any:
    """The text of a message's content that is a list of texts in parts; any other content as it is."""
    if not isinstance(content, list):
        return content
    texts = [
        part["text"]
        for part in content
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    ]
    return "".join(texts) if len(texts) == len(content) else content
