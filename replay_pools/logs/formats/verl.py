"""verl's dump of rollouts (`trainer.rollout_data_dir`): of the V1 trainer, and of the legacy one with extra keys."""

from collections.abc import Iterable, Sequence

from replay_pools.errors import Faults, InputError
from replay_pools.logs.table import Fields, Format, StoredRow, Table, has, unfolded

STRICT, LOOSE = "is_reward_hack_strict", "is_reward_hack_loose"
MAPPING = {"step": "step", "completion": "output", "reward": "score"}
CANNOT_KNOW = (
    "Token ids, the finish reason and the prompt's markup, which was skipped: prompts are restored and checked"
)
_is_dump = has("input", "output", "score", "step")


def _read_v1(rows: Sequence[StoredRow], faults: Faults) -> Table:
    flat, notes = unfolded(rows, _with_prompt_uid, faults)
    return Table(flat, {**MAPPING, "skipped": "input", "group": "step+prompt_uid"}, notes)


def _with_prompt_uid(fields: Fields) -> Iterable[Fields]:
    """The row with the part of `uid` before session and index, which its group shares."""
    prompt, *rest = str(fields["uid"]).rsplit("_", 2)
    if len(rest) != 2:
        raise InputError("uid", expected="PROMPT_SESSION_INDEX", found=repr(fields["uid"]))
    if rest[1] != "0":
        raise InputError("uid", expected="one output a session", found=f"index {rest[1]}: several turns")
    return [fields | {"prompt_uid": prompt}]


def _read_legacy(rows: Sequence[StoredRow], faults: Faults) -> Table:
    """Rows were permuted before they were written: groups are those of one step and one prompt (or id)."""
    first = rows[0].fields
    mapping = {**MAPPING, "skipped": "input"}
    notes: list[str] = []
    if "eq_correct" in first:  # keys of ariahw/rl-rewardhacking; -1 is unknown
        mapping |= {"gt_pass": "eq_correct", "problem": "id", "group": "step+id"}
    if STRICT in first:
        mapping["hacked"] = STRICT
        notes.append(f"hacked is `{STRICT}`: the loophole passes and the answer is wrong (--map hacked={LOOSE})")
    return Table([*rows], mapping, notes)


VERL = Format(
    name="verl",
    recognises=lambda row: _is_dump(row) and isinstance(row.fields.get("uid"), str),
    read=_read_v1,
    cannot_know=f"{CANNOT_KNOW}; labels.",
)
VERL_LEGACY = Format(
    name="verl-legacy",
    recognises=_is_dump,
    read=_read_legacy,
    cannot_know=f"{CANNOT_KNOW}; the group, which is taken from step and prompt.",
)
