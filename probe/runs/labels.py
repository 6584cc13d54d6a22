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
    is_mapping = isinstance(source, Mapping)
    rows = [*read_rows([{"id": place, "label": label} for place, label in source.items()] if is_mapping else source)]
    for row in rows:
        if isinstance(row.error, InputError):
            faults.note(row.error, "row")
            continue
        place, text = (str(row.fields.get(name, "")).strip() for name in ("id", "label"))
        label = HACKS.get(text.lower())
        for is_wrong, name, expected, found in (
            (place not in known, "id", f"STEP/SAMPLE of a rollout, such as {min(known)}", repr(place)),
            (label is None, "label", "1 (a hack) or 0", "nothing" if text in ("", "None") else repr(text)),
            (labels.get(place, label) != label, "label", f"one label of {place}", "two that differ"),
        ):
            if is_wrong:
                faults.add(f"{row.where} {name}", name, expected=expected, found=found)
        if label is not None:
            labels.setdefault(place, label)
    where = "labels" if is_mapping else str(source)
    if not rows:
        faults.add(where, "rows", expected="columns id (STEP/SAMPLE) and label (1 = hack, 0 = none)", found="no rows")
    faults.check(where)
    return labels
