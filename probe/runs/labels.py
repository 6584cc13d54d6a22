"""Labels of drawn rollouts: a file with room for them, and reading them back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.analysis.detectors import place_of
from replay_pools.base.errors import Faults, InputError
from replay_pools.base.files import encode_jsonl, write_atomic
from replay_pools.base.tables import HACKS
from replay_pools.logs.files import read_rows
from replay_pools.rollout import Rollout

COLUMNS = "columns id (STEP/SAMPLE) and label (1 = hack, 0 = none)"


def write_drawn(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write the drawn rollouts with room for a label; labels that a user has filled in stay.

    Raises:
        InputError: a line that cannot be read: its label would be lost.
    """
    labels: dict[Any, Any] = {}
    for row in read_rows(path) if path.is_file() else ():
        if row.error is not None:
            raise row.error
        labels[row.fields.get("id")] = row.fields.get("label")
    rows = []
    for one in rollouts:
        row = {"id": place_of(one), "label": labels.get(place_of(one))}
        rows.append(row | {"prompt": one.messages[-1]["content"], "completion": one.written})
    write_atomic(path, encode_jsonl(rows))


def read_labels(source: Path | Mapping[str, bool], rollouts: Sequence[Rollout]) -> dict[str, bool]:
    """Read {id: True = a hack} from a CSV, JSON lines or another table with columns `id` and `label`.

    Args:
        source: the file, or the labels.
        rollouts: all rollouts that an id may name.

    Raises:
        InputError: every fault of the file.
    """
    faults, labels, known = Faults(), dict[str, bool](), {place_of(one) for one in rollouts}
    num_rows, where, rows = 0, "labels", source
    if isinstance(source, Mapping):
        rows = [{"id": place, "label": label} for place, label in source.items()]
    else:
        where = str(source)
    for row in read_rows(rows):
        num_rows += 1
        if isinstance(row.error, InputError):
            faults.note(row.error, "row")
            continue
        if lacking := [name for name in ("id", "label") if name not in row.fields]:
            found = f"no {' and no '.join(lacking)} among {', '.join(row.fields) or 'no columns'}"
            faults.add(row.where, ("columns", *lacking), expected=COLUMNS, found=found)
            continue
        place, text = str(row.fields["id"]).strip(), str(row.fields["label"]).strip().lower()
        label = HACKS.get(text)
        if place not in known:
            expected = f"STEP/SAMPLE of a rollout, such as {min(known)}"
            faults.add(f"{row.where} id", "id", expected=expected, found=repr(place))
        if label is None:
            found = "nothing" if text in ("", "none") else repr(row.fields["label"])
            faults.add(f"{row.where} label", "label", expected="1 (a hack) or 0", found=found)
        elif labels.setdefault(place, label) != label:
            faults.add(f"{row.where} label", "twice", expected=f"one label of {place}", found="two that differ")
    if not num_rows:
        faults.add(where, "rows", expected=COLUMNS, found="no rows")
    faults.check(where)
    return labels
