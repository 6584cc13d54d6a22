"""Recognise who wrote a log, and make flat rows of its objects: a row in FORMATS for each writer.

To add one: a row, before those that would take its rows. `unfold` makes flat rows of one nested object.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from replay_pools.base.errors import InputError, unknown_name
from replay_pools.base.tables import flat
from replay_pools.logs.columns import BLOCKS, FILE, NO_COLUMN, PROMPT_NAMES, TARGETS, Scan, opened, singular
from replay_pools.logs.rows import HEAD, Fields, Row, Rows, SkipRow
from replay_pools.logs.writers import inspect, nemo_gym, nemo_rl, prime_rl, slime

GENERAL = "columns"  # the format of any other log
BLOCK = "row of the log"  # the column that says which rollouts one row held


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of log."""

    name: str
    has: str  # columns of its first row, with spaces between
    mapping: str  # TARGET=COLUMN with spaces between, or one name for both; the rest is guessed
    unfold: Callable[[Fields], Iterable[Fields | SkipRow]] = lambda fields: (fields,)
    settle: Callable[[Scan], dict[str, str]] = lambda scan: {}  # {target: column} by the columns of the whole log
    mend: Callable[[Iterable[Row]], Iterator[Row]] = iter  # of the rows in their order
    recognises: Callable[[Row], bool] = lambda row: True  # what else its first row is
    is_ours: bool = False  # a step is the number of a group, and rewards are our grader's


def recognise(rows: Rows, name: str | None) -> Format:
    """Return the format of that name, or the first that recognises the first row that may hold a rollout.

    Raises:
        InputError: no format has the name.
    """
    if name is not None:
        known = {row.name: row for row in FORMATS}
        if name not in known:
            raise unknown_name(f"--format {name}", name, known, expected="a format", fix="leave it out")
        return known[name]
    first = next((row for row in islice(rows, HEAD) if row.may_hold and not row.error), Row("", "", {}))
    return next(row for row in FORMATS if {*row.has.split()} <= first.fields.keys() and row.recognises(first))


def flat_rows(rows: Rows, kind: Format) -> Rows:
    """Return the rollouts in the rows of a log, one a row, with the step of their file where it has one."""

    def read() -> Iterator[Row]:
        for row in kind.mend(rows):
            if row.error is not None:
                yield row
                continue
            step = {} if rows.steps is None else {"step": rows.steps[row.file]}
            try:
                for item in kind.unfold({**step, **row.fields}):
                    if isinstance(item, SkipRow):
                        yield row._replace(error=item)
                        continue
                    block = {BLOCK: row.where.removeprefix(row.file)} if BLOCK in item else {}
                    yield row._replace(fields={**item, **block})
            except SkipRow as reason:
                yield row._replace(error=reason)
            except InputError as error:
                yield row._replace(error=error.at(f"{row.where} {error.where}"))
            except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
                found = f"{type(error).__name__}: {error}"
                yield row._replace(error=InputError(row.where, expected="the fields of its format", found=found))

    return replace(rows, read=read)


def known_columns(kind: Format, scan: Scan) -> dict[str, str]:
    """Return {target: column} of a format; a column that holds nothing is none, but for the reward.

    No other column is guessed for it.
    """
    mapping = {part.partition("=")[0]: part.rpartition("=")[2] for part in kind.mapping.split()} | kind.settle(scan)
    known = {*scan.first, FILE, NO_COLUMN, BLOCKS}
    for target, text in mapping.items():
        if target != "reward" and not {part.partition(".")[0] for part in text.split("+")} <= known:
            mapping[target] = NO_COLUMN
    return mapping


# TRL: one Parquet file a log call. It names no groups, and its rewards by their functions.

TRL_COLUMNS = ("step", "prompt", "completion", "advantage")


def _repeats(rows: Iterable[Row]) -> Iterator[Row]:
    """Leave out a batch that is written again, whole, under each step until the next is sampled."""
    before = b""
    for _, block in groupby(rows, key=lambda row: (row.file, row.fields.get("step"))):
        batch, marks = [*block], hashlib.sha256()
        for row in batch:
            marks.update(repr({**row.fields, "step": None}).encode())
        is_repeat, before = marks.digest() == before, marks.digest()
        reason = SkipRow("a batch that was logged again under the next step")
        yield from (row._replace(error=reason) for row in batch) if is_repeat else batch


def _trl(scan: Scan) -> dict[str, str]:
    mapping = dict[str, str]()
    reserved = {name for target, names in TARGETS.items() if target != "reward" for name in names} | {*TRL_COLUMNS}
    numbers = [name for name, kinds in scan.kinds.items() if name not in reserved and kinds and kinds <= {int, float}]
    if numbers:
        mapping["reward"] = "reward" if "reward" in numbers else "+".join(numbers)
    if str in scan.kinds.get("prompt", ()) and not isinstance(opened(scan.first["prompt"]), list):
        mapping["rendered"] = "prompt"  # TRL gives it to the model as it is
    # A reward function may log the group: its name tells the column.
    if not {*TARGETS["group"]} & scan.first.keys():
        mapping["group"] = BLOCKS
    return mapping


# verl's dump of rollouts. The legacy trainer, without `uid`, permuted the rows: no blocks are groups.


def _verl(fields: Fields) -> Iterator[Fields]:
    """Return the row with the part of `uid` before session and index, which its group shares."""
    if (fields.get("num_turns") or 0) > 2:
        raise SkipRow("several turns in one text, without a mask")
    if not isinstance(fields.get("uid"), str):
        yield fields
        return
    prompt, *rest = fields["uid"].rsplit("_", 2)
    if len(rest) != 2 or rest[1] != "0":
        raise InputError("uid", expected="PROMPT_SESSION_0, one output a session", found=repr(fields["uid"]))
    yield fields | {"uid": prompt}


def _one_scorer(scan: Scan) -> dict[str, str]:
    """Take the only number of a scorer as the reward; the user names one of several."""
    names = [*flat(scan.first.get("scores") or {})]
    return {"reward": f"scores.{names[0]}"} if len(names) == 1 else {}


# Any other log; a row with lists of completions and rewards is one group.

ANSWERS = ("completions", "responses", "outputs", "completion_ids", "response_ids")


def _exploded(fields: Fields) -> Iterator[Fields]:
    """Return a row with a list of answers as one row each: every list of their number is one of them."""
    answers = [name for name in ANSWERS if _is_several(opened(fields.get(name)), name)]
    rewards = [opened(fields.get(name)) for target in TARGETS["reward"] for name in (target, f"{target}s")]
    # Next to one reward, a list holds something other than answers.
    kinds = {*map(type, rewards)}
    if not answers or (kinds & {int, float, bool} and not kinds & {list, dict}):
        yield fields
        return
    num = len(opened(fields[answers[0]]))
    lists, others = dict[str, list[Any]](), dict[str, Any]()
    for name, stored in fields.items():
        value = stored if name in PROMPT_NAMES else _in_rows(opened(stored), num)
        is_prompt = name in PROMPT_NAMES and not (name.endswith("_ids") and _is_several(value, name))
        is_list = isinstance(value, list) and not is_prompt
        if is_list and len(value) != num and (name in ANSWERS or singular(name) != name):
            raise InputError(name, expected=f"one value for each of {num} {answers[0]}", found=f"{len(value)} values")
        (lists if is_list and len(value) == num else others)[name] = value
    shares_prompt = not PROMPT_NAMES & {singular(name) for name in lists}
    for values in zip(*lists.values(), strict=True):
        one = {singular(name): value for name, value in zip(lists, values, strict=True)}
        yield others | one | ({BLOCK: None} if shares_prompt else {})


def _in_rows(value: Any, num: int) -> Any:
    """Return an object of lists of `num` values as a list of objects; any other value unchanged."""
    columns = [*value.values()] if isinstance(value, dict) else []
    if not columns or not all(isinstance(column, list) and len(column) == num for column in columns):
        return value
    return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]


def _is_several(value: Any, name: str) -> bool:
    """Return whether a value is a list of answers. Ids of one answer, and messages of one, are lists too."""
    if not isinstance(value, list) or not value:
        return False
    is_one = isinstance(value[0], dict) or (name.endswith("_ids") and not isinstance(value[0], list))
    return not (is_one or isinstance(value[0], int))


def _is_trl(row: Row) -> bool:
    """Tell by the name of the file, or by the lack of columns that only logs of others have."""
    return "completions_" in row.file or not {*TARGETS["reward"], *TARGETS["group"]} & row.fields.keys()


IDS = "messages completion prompt_ids completion_ids mask logprobs"
VERL = "step completion=output reward=score skipped=input group=step+uid"
SLIME = f"{IDS} mask=loss_mask logprobs=rollout_log_probs prompt={NO_COLUMN} completion={NO_COLUMN}"
FORMATS = (
    # Also the pools that the seed author published.
    Format("logged", "completion completion_ids reward problem_id plen", "problem=problem_id", is_ours=True),
    Format("trl", " ".join(TRL_COLUMNS), "step completion advantage", recognises=_is_trl, mend=_repeats, settle=_trl),
    Format("verl", "input output score step", VERL, _verl),
    Format("prime-rl", "traces", f"group problem step reward finish {IDS}", prime_rl),
    Format("verifiers", "example_id prompt completion reward", "prompt completion reward"),
    Format("inspect", "id epoch messages scores", "prompt completion tools finish=stop_reason", inspect, _one_scorer),
    Format("slime", "tokens response_length group_index", f"group=file+group_index reward finish {SLIME}", slime),
    Format("nemo-gym", "responses_create_params response", f"group=file+_ng_task_index reward finish {IDS}", nemo_gym),
    Format("nemo-rl", "content rewards input_lengths", f"reward=rewards prompt {IDS}", nemo_rl),
    Format(GENERAL, "", "", _exploded, lambda scan: {"group": BLOCK} if BLOCK in scan.first else {}),
)
