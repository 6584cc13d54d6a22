"""Which column of a log is taken for which target: as the user says, else as the format knows, else by its name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replay_pools.errors import Faults
from replay_pools.logs.columns import EVERY, MARKUP, NO_COLUMN, PROMPTS, TARGETS, look_up, unknown_targets
from replay_pools.logs.table import Fields, Table
from replay_pools.pool import CAUTION

# Names of a completion that also have the right answer of a problem, or any text beside a conversation.
VAGUE = ("answer", "text")
PAID = ("gt_pass", "fmt_ok")  # labels for which trainings pay


@dataclass(frozen=True, slots=True)
class Choice:
    """The columns of a log, and where they were guessed."""

    mapping: dict[str, str]  # {target: column}
    guessed: frozenset[str]  # targets whose column was found by its name
    notes: list[str] = field(default_factory=list)  # one sentence each

    @property
    def every(self) -> int | None:
        """The size of blocks of rows that are groups; None where they are not groups."""
        match = EVERY.fullmatch(self.mapping.get("group", ""))
        return int(match[1]) if match else None


def chosen(table: Table, corrections: Mapping[str, str], faults: Faults) -> Choice:
    """The columns of a table.

    Args:
        table: as a format made it.
        corrections: {target: column} of the user, before all others.
        faults: where targets go that do not exist.
    """
    for error in unknown_targets(corrections):
        faults.note(error, error.where)
    known = {**_without_labels(table.mapping, corrections, faults), **corrections}
    # A prompt that the user names is the only one, beside messages that he names as well.
    if any(target in corrections for target in PROMPTS):
        known = {target: name for target, name in known.items() if target not in PROMPTS or target in corrections}
    guessed, notes = _guessed([row.fields for row in table.rows], known)
    mapping = known | guessed
    mapping = {target: mapping[target] for target in TARGETS if mapping.get(target, NO_COLUMN) != NO_COLUMN}
    rewards = mapping.get("reward", "").split("+")
    if "reward" not in corrections and len(rewards) > 1:
        weighted = "+".join(f"{name}*WEIGHT" for name in rewards)
        notes.append(
            f"{CAUTION}reward is taken to be the sum of {', '.join(rewards)}, all columns of numbers that are nothing "
            f"else (--map reward=COLUMN, or {weighted})"
        )
    return Choice(mapping, frozenset(guessed) & mapping.keys(), notes)


def _without_labels(known: Mapping[str, str], corrections: Mapping[str, str], faults: Faults) -> dict[str, str]:
    """What a format knows, without the parts of its reward that the user gives to other targets, such as `hacked`.

    What is right, or has its format, may be paid as well: of several parts the user is asked which are.
    """
    if "reward" not in known or "reward" in corrections:
        return dict(known)
    parts = known["reward"].split("+")
    kept: list[str] = []
    for part in parts:
        takers = [target for target, text in corrections.items() if part in _parts(text)]
        may_be_paid = bool(takers) and {*takers} <= {*PAID}
        if may_be_paid and len(parts) > 1:
            expected = f"--map reward=COLUMN beside it, since {part} may also be paid"
            found = f"no reward named, of {', '.join(parts)}"
            fix = f"pass --map reward={'+'.join(parts)}, or those paid"
            faults.add(f"--map {takers[0]}={part}", "reward", expected=expected, found=found, fix=fix)
        if may_be_paid or not takers:
            kept.append(part)
    others = {target: text for target, text in known.items() if target != "reward"}
    return others | ({"reward": "+".join(kept)} if kept else {})


def _parts(text: str) -> set[str]:
    """A column, and the columns that it is put together of."""
    return {text, *(name.strip() for name in re.split(r"[+*]", text))}


def _guessed(rows: Sequence[Fields], known: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """({target: column} by the names of columns, beside those that are `known`; what was left out and why).

    A column stands for one target; one without any value stands for none.
    """
    filled: dict[str, Any] = {}  # {column: its first value}
    for fields in rows:
        for name, value in fields.items():
            if value is not None:
                filled.setdefault(name, value)
    settled = {*known}
    # One form of the prompt that the format knows is enough: another column would contradict it.
    if settled & {*PROMPTS}:
        settled |= {"prompt", "messages"}
    taken = {name for text in known.values() for name in _parts(text)}
    guessed: dict[str, str] = {}
    for target, entry in TARGETS.items():
        free = [name for name in entry.names if name in filled and name not in taken]
        if target == "completion" and _hold_answers(rows, {**guessed, **known}):
            free = [name for name in free if name not in VAGUE]
        if target in settled or not free:
            continue
        guessed[target] = free[0]
        taken.add(free[0])
    return _without_raw_prompt(guessed, filled, known)


def _hold_answers(rows: Sequence[Fields], mapping: Mapping[str, str]) -> bool:
    """Whether the messages of the first row that has any end in a turn of the assistant."""
    for fields in rows:
        for target in ("messages", "prompt"):
            messages = look_up(fields, mapping.get(target, ""))
            if isinstance(messages, list) and messages:
                return isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant"
    return False


def _without_raw_prompt(
    guessed: dict[str, str], filled: Fields, known: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """A guessed `prompt` that is a text is `rendered` with markup; without, it is left out beside messages or ids."""
    name = guessed.get("prompt")
    if name is None or "rendered" in {*guessed, *known} or not isinstance(filled[name], str):
        return guessed, []
    if MARKUP.match(filled[name]):
        del guessed["prompt"]
        guessed["rendered"] = name
        return guessed, []
    beside = [target for target in ("prompt_ids", "messages") if target in {*guessed, *known}]
    if not beside:
        return guessed, []
    del guessed["prompt"]
    note = f"`{name}` has no markup of a chat template and was left out: {beside[0]} say what the model saw"
    return guessed, [f"{note} (--map rendered={name} where it was this text)"]
