"""Any other log: columns that are recognised by their names, as in data sets of Hugging Face."""

from collections.abc import Iterable, Sequence

from replay_pools.errors import Faults, InputError
from replay_pools.logs.table import Fields, Format, StoredRow, Table, unfolded

LISTS = {"completions": "completion", "responses": "response", "outputs": "output", "rewards": "reward"}
LISTS |= {"scores": "score", "completion_ids": "completion_ids", "response_ids": "response_ids", "hacked": "hacked"}
BLOCK = "row of the log"  # the column that says which rollouts one row held


def _read(rows: Sequence[StoredRow], faults: Faults) -> Table:
    if not any("completions" in row.fields or "responses" in row.fields or "outputs" in row.fields for row in rows):
        notes = []
        if any(isinstance(row.fields.get("label"), bool) for row in rows):
            notes.append("`label` is taken neither for hacked nor for gt_pass (--map hacked=label where it is)")
        return Table([*rows], {}, notes)
    numbered = [StoredRow(row.path, row.where, {**row.fields, BLOCK: i}) for i, row in enumerate(rows)]
    flat, notes = unfolded(numbered, _exploded, faults)
    return Table(flat, {"group": BLOCK}, [*notes, "a row with lists is one group"])


def _exploded(fields: Fields) -> Iterable[Fields]:
    """A row whose completions and rewards are lists, as one row each."""
    lists = {name: value for name, value in fields.items() if name in LISTS and isinstance(value, list)}
    # Ids of one completion are a list too: of numbers, not of lists.
    lists = {name: value for name, value in lists.items() if not name.endswith("_ids") or isinstance(value[0], list)}
    lengths = {name: len(value) for name, value in lists.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError("lists", expected="lists of one length", found=listed)
    rest = {name: value for name, value in fields.items() if name not in lists}
    for values in zip(*lists.values(), strict=True):
        yield rest | {LISTS[name]: value for name, value in zip(lists, values, strict=True)}


COLUMNS = Format(
    name="columns",
    recognises=lambda row: True,
    read=_read,
    cannot_know="What a column means beyond its name, and whatever it has no column for.",
)
