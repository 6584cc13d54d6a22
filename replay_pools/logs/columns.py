"""Which column of a log is what: TARGETS, the names by which they are guessed, and mappings such as `reward=score`.

    parse_mapping("reward=score,group=step+uid,hacked=info.is_hack")   {target: column}

The column of a target is a name; a name with dots is a key of an inner object. `reward` may be a weighted sum
(`exact*1.0+short*0.5`), `group` and `problem` several columns (`step+uid`), `group` also `every:8` for blocks of eight
rows, and `none` is no column. To add a target: a row in TARGETS, and a field of `rows.LogRow`.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from replay_pools.errors import InputError, refuse
from replay_pools.logs.table import Fields

NO_COLUMN = "none"
EVERY = re.compile(r"every:([1-9]\d*)")
MANY_SHOWN = 12  # columns that an error lists
# How a prompt begins that a chat template has rendered.
MARKUP = re.compile(r"\s*(<[|\uff5c]|<s>|<bos>|\[INST\]|<start_of_turn>)")

Joins = Literal["one", "sum", "key"]


@dataclass(frozen=True, slots=True)
class Target:
    """Something that a rollout has: what it means, and names that columns with it usually have."""

    meaning: str
    names: tuple[str, ...]
    joins: Joins = "one"  # whether several columns may stand for it: as a weighted sum, or as one key


TARGETS = {
    "problem": Target(
        "what groups of one problem share",
        ("problem_id", "prompt_id", "example_id", "question_id", "task_id", "id", "index"),
        "key",
    ),
    "group": Target("what rollouts that are compared share", ("group_id", "group", "uid"), "key"),
    "step": Target("step of the training", ("step", "global_step", "training_step")),
    "messages": Target("the messages of the prompt", ("messages", "problem_messages", "raw_prompt", "conversation")),
    "prompt": Target(
        "messages, or the text of one user message", ("prompt", "question", "query", "input", "problem", "instruction")
    ),
    "rendered": Target("the prompt with its chat markup", ("rendered_prompt", "prompt_text")),
    "skipped": Target("the prompt decoded without special tokens: restored, and checked", ()),
    "prompt_ids": Target("token ids of the prompt", ("prompt_ids", "prompt_token_ids", "prompt_tokens")),
    "plen": Target("number of prompt tokens", ("plen", "prompt_len", "prompt_length")),
    "completion": Target(
        "text of the completion, or its message",
        ("completion", "response", "output", "answer", "generation", "generated_text", "text"),
    ),
    "completion_ids": Target(
        "token ids as sampled",
        (
            "completion_ids",
            "completion_token_ids",
            "response_ids",
            "response_token_ids",
            "response_tokens",
            "output_ids",
            "output_token_ids",
            "token_ids",
        ),
    ),
    "comp_len": Target(
        "number of completion tokens", ("comp_len", "completion_len", "completion_length", "response_length")
    ),
    "logprobs": Target(
        "log-probabilities of sampling, one a completion token",
        ("sampling_logprobs", "rollout_log_probs", "completion_logprobs", "logprobs"),
    ),
    "reward": Target("the reward", ("reward", "score", "acc"), "sum"),
    "advantage": Target("the advantage that the trainer used", ("advantage",)),
    "hacked": Target(
        "whether it hacks", ("hacked", "is_hack", "is_hacked", "hack", "is_reward_hack", "reward_hack", "exploited")
    ),
    "gt_pass": Target("whether it is right", ("gt_pass", "gt_correct", "is_correct", "correct", "eq_correct")),
    "fmt_ok": Target("whether it has the format asked for", ("fmt_ok", "format_ok")),
    "finish": Target("stop or length", ("finish_reason", "stop_reason", "finish")),
    "truncated": Target("whether it was cut off", ("truncated", "is_truncated")),
    "hint": Target("whether the prompt says how it is evaluated", ("hint",)),
    "env": Target("source of the problems", ("env",)),
    "env_mode": Target("loophole mode", ("env_mode",)),
}
PROMPTS = ("messages", "prompt", "rendered", "skipped", "prompt_ids")
COMPLETIONS = ("completion", "completion_ids")


@dataclass(frozen=True, slots=True)
class Column:
    """Where the value of a target stands in a row: columns with weights."""

    terms: tuple[tuple[str, float], ...]

    @property
    def names(self) -> list[str]:
        """The columns, without their weights."""
        return [name for name, _ in self.terms]

    def value(self, fields: Fields) -> Any:
        """The one value, the weighted sum of numbers, or None where no column has any."""
        if len(self.terms) == 1 and self.terms[0][1] == 1:
            return look_up(fields, self.terms[0][0])
        total: float | None = None
        for name, weight in self.terms:
            value = look_up(fields, name)
            if value is None or value != value:  # NaN: this reward function had no say
                continue
            if not isinstance(value, int | float):
                return value  # no number: the check of the row names it
            total = (total or 0.0) + weight * value
        return total

    def key(self, fields: Fields) -> tuple[str, ...] | None:
        """The values together as a key; None where one is missing."""
        values = [look_up(fields, name) for name, _ in self.terms]
        return None if None in values else tuple(map(str, values))


def look_up(fields: Fields, name: str) -> Any:
    """The value of a column, by its name or by a name with dots; None where there is none."""
    if name in fields:
        return fields[name]
    value: Any = fields
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def parse_mapping(text: str) -> dict[str, str]:
    """{target: column} of `target=column,target=column`.

    Raises:
        InputError: a part without `=`, an unknown target, or a target twice; all of them.
    """
    mapping: dict[str, str] = {}
    faults: list[InputError] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        target, equals, column = (piece.strip() for piece in part.partition("="))
        if not (equals and target and column):
            expected = "TARGET=COLUMN, with commas between several"
            faults.append(InputError("--map", expected=expected, found=repr(part)))
        elif target in mapping:
            faults.append(InputError(f"--map {target}", expected="a target once", found="it twice"))
        else:
            mapping[target] = column
    refuse([*faults, *unknown_targets(mapping)])
    return mapping


def unknown_targets(mapping: Mapping[str, str]) -> list[InputError]:
    """An error with near names for every target that TARGETS lacks."""
    expected = f"one of {', '.join(TARGETS)}"
    return [
        InputError(f"--map {target}", expected=expected, found="an unknown target", fix=did_you_mean(target, TARGETS))
        for target in mapping
        if target not in TARGETS
    ]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the nearest known names, or nothing."""
    near = get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else ""


def parse_column(target: str, text: str, columns: Iterable[str]) -> Column:
    """The column of a target.

    Args:
        target: what it is for; decides whether several columns may stand for it.
        text: as in a mapping.
        columns: the names that exist.

    Raises:
        InputError: a name that does not exist, a weight that is no number, or several columns where one is needed.
    """
    columns = list(columns)
    if text in columns:
        return Column(((text, 1.0),))
    joins = TARGETS[target].joins
    terms: list[tuple[str, float]] = []
    for part in text.split("+") if joins != "one" else [text]:
        name, star, weight = (piece.strip() for piece in part.partition("*"))
        if star and joins == "sum":
            terms.append((name, _weight(target, part, weight)))
        else:
            terms.append((part.strip(), 1.0))
    for name, _ in terms:
        if name not in columns:
            listed = ", ".join(columns[:MANY_SHOWN]) + (", ..." if len(columns) > MANY_SHOWN else "")
            raise InputError(
                f"--map {target}={text}",
                expected=f"a column of the log ({listed})",
                found=f"no {name!r}",
                fix=did_you_mean(name, columns),
            )
    return Column(tuple(terms))


def _weight(target: str, part: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise InputError(f"--map {target}", expected="COLUMN*NUMBER, a finite one", found=repr(part.strip()))
    return weight


def columns_of(rows: Sequence[Fields]) -> list[str]:
    """The names of all columns, those of inner objects with dots, in the order of appearance."""
    names: dict[str, None] = {}
    for fields in rows:
        for name, value in fields.items():
            names[name] = None
            if isinstance(value, dict):
                names |= dict.fromkeys(f"{name}.{inner}" for inner in value)
    return list(names)
