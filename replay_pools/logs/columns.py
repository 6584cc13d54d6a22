"""Which column of a log is what: as the user says, else as the format knows, else by its name.

    parse_mapping("reward=score,group=step+uid,hacked=info.is_hack")   {target: column}

A column is a name; with dots it is a key of an inner object, or a number in a list (`choices.0.text`). `reward` may be
a weighted sum (`exact*1.0+short*0.5`), `group` and `problem` several columns (`step+uid`), `group` also `every:8` for
blocks of eight rows, and `none` is no column. To add a target: a row in TARGETS, and a field of `rows.LogRow`.
"""

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from replay_pools.base.errors import Faults, InputError, refuse, unknown_name
from replay_pools.logs.sources import Fields, Log, Rows
from replay_pools.pool import CAUTION

NO_COLUMN = "none"
MISSING = object()
EVERY = re.compile(r"every:([1-9]\d*)")
# How a prompt begins that a chat template has rendered.
MARKUP = re.compile(r"\s*(<[|\uff5c]|<s>|<bos>|\[INST\]|<start_of_turn>)")
# {target: names that columns with it usually have}
TARGETS = {
    target: tuple(names.split())
    for target, names in {
        "problem": "problem_id prompt_id example_id question_id task_id id index",
        "group": "group_id group uid",
        "step": "step global_step training_step",
        "messages": "messages problem_messages raw_prompt conversation",
        "prompt": "prompt question query input problem instruction",
        "rendered": "rendered_prompt prompt_text",
        "skipped": "",  # the prompt decoded without special tokens: restored, and checked
        "prompt_ids": "prompt_ids prompt_token_ids prompt_tokens",
        "plen": "plen prompt_len prompt_length",
        "completion": "completion response output answer generation generated_text text",
        "completion_ids": "completion_ids completion_token_ids response_ids response_token_ids response_tokens "
        "output_ids output_token_ids token_ids",
        "comp_len": "comp_len completion_len completion_length response_length",
        "logprobs": "sampling_logprobs rollout_log_probs completion_logprobs logprobs",
        "reward": "reward score acc",
        "advantage": "advantage",
        "hacked": "hacked is_hack is_hacked hack is_reward_hack reward_hack exploited",
        "gt_pass": "gt_pass gt_correct is_correct correct eq_correct",
        "fmt_ok": "fmt_ok format_ok",
        "finish": "finish_reason stop_reason finish",
        "truncated": "truncated is_truncated",
        "hint": "hint",
        "env": "env",
        "env_mode": "env_mode",
    }.items()
}
PROMPTS = ("messages", "prompt", "rendered", "skipped", "prompt_ids")
COMPLETIONS = ("completion", "completion_ids")
KEYS = ("problem", "group")  # several columns may stand for them, as one key
# Names of a completion that also have the right answer of a problem, or any text beside a conversation.
VAGUE = ("answer", "text")
PAID = ("gt_pass", "fmt_ok")  # labels for which trainings pay


def look_up(fields: Fields, name: str, default: Any = None) -> Any:
    """The value of a column by its name, or by a path with dots and numbers of items; `default` where there is none."""
    if name in fields:
        return fields[name]
    value: Any = fields
    for part in name.split("."):
        if isinstance(value, dict):
            value = value.get(part, default)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return default
    return value


def parse_mapping(text: str, option: str = "--map", targets: Collection[str] = TARGETS) -> dict[str, str]:
    """{target: column} of `target=column,target=column`, which `option` was given.

    Raises:
        InputError: a part without `=`, an unknown target, or a target twice; all of them.
    """
    mapping: dict[str, str] = {}
    faults: list[InputError] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        target, equals, column = (piece.strip() for piece in part.partition("="))
        if not (equals and target and column) or target in mapping:
            expected = "TARGET=COLUMN, each target once, with commas between several"
            faults.append(InputError(option, expected=expected, found=repr(part)))
        elif target not in targets:
            fix = f"pass {option} TARGET=COLUMN"
            faults.append(unknown_name(f"{option} {target}", target, targets, expected="a target", fix=fix))
        else:
            mapping[target] = column
    refuse(faults)
    return mapping


def as_option(mapping: Mapping[str, str]) -> str:
    """`--map reward=score,prompt=question`, to be pasted into a shell."""
    return f"--map {shlex.quote(','.join(f'{target}={column}' for target, column in mapping.items()))}"


Terms = list[tuple[str, float]]  # columns with their weights: where the value of a target stands


def value_of(terms: Terms, fields: Fields) -> Any:
    """The one value, the weighted sum of numbers, or None where no column has any."""
    if len(terms) == 1 and terms[0][1] == 1:
        return look_up(fields, terms[0][0])
    total: float | None = None
    for name, weight in terms:
        value = look_up(fields, name)
        if value is None or value != value:  # NaN: this reward function had no say
            continue
        if not isinstance(value, int | float):
            return value  # no number: the check of the row names it
        total = (total or 0.0) + weight * value
    return total


def parse_column(target: str, text: str, rows: Rows) -> Terms:
    """The column of a target, as in a mapping.

    Raises:
        InputError: a name that no row has, or a weight that is no finite number.
    """
    is_one = (target != "reward" and target not in KEYS) or text in rows.kinds
    terms: Terms = []
    for part in [text] if is_one else text.split("+"):
        name, _, number = part.partition("*") if target == "reward" and not is_one else (part, "", "")
        name = name if is_one else name.strip()
        if name not in rows.kinds and all(look_up(row.fields, name, MISSING) is MISSING for row in rows):
            where, fix = f"--map {target}={text}", f"pass --map {target}=COLUMN"
            names = columns_of(row.fields for row in rows)
            raise unknown_name(where, name, names, expected="a column of the log", fix=fix)
        try:
            weight = float(number.strip() or 1)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            raise InputError(f"--map {target}", expected="COLUMN*NUMBER, a finite one", found=repr(part.strip()))
        terms.append((name, weight))
    return terms


def columns_of(rows: Iterable[Fields]) -> list[str]:
    """The names of all columns, and of the keys of inner objects with dots, in the order of appearance."""
    names: dict[str, None] = {}
    for fields in rows:
        for name, value in fields.items():
            names[name] = None
            if isinstance(value, dict):
                names |= dict.fromkeys(f"{name}.{inner}" for inner in value)
    return list(names)


def block_size(mapping: Mapping[str, str]) -> int | None:
    """The size of blocks of rows that are groups; None where they are not groups."""
    match = EVERY.fullmatch(mapping.get("group", ""))
    return int(match[1]) if match else None


def choose_columns(log: Log, corrections: Mapping[str, str]) -> None:
    """Complete the mapping of a log, of which its format has given what it knows.

    Args:
        log: whose mapping, guesses, notes and faults are filled.
        corrections: {target: column} of the user, before all others.
    """
    known = {**_without_labels(log.mapping, corrections, log.faults), **corrections}
    # A prompt that the user names is the only one, beside messages that he names as well.
    if any(target in corrections for target in PROMPTS):
        known = {target: name for target, name in known.items() if target not in PROMPTS or target in corrections}
    guessed, notes = _guessed(log.rows, known)
    mapping = known | guessed
    log.mapping = {target: mapping[target] for target in TARGETS if mapping.get(target, NO_COLUMN) != NO_COLUMN}
    log.guessed = guessed.keys() & log.mapping.keys()
    log.notes += notes
    rewards = log.mapping.get("reward", "").split("+")
    if "reward" not in corrections and len(rewards) > 1:
        weighted = "+".join(f"{name}*WEIGHT" for name in rewards)
        log.notes.append(
            f"{CAUTION}reward is taken to be the sum of {', '.join(rewards)}, all columns of numbers that are nothing "
            f"else (--map reward=COLUMN, or {weighted})"
        )


def _without_labels(known: Mapping[str, str], corrections: Mapping[str, str], faults: Faults) -> dict[str, str]:
    """What a format knows, without the parts of its reward that the user gives to other targets, such as `hacked`.

    What is right, or has its format, may be paid as well: of several parts the user is asked which are.
    """
    if "reward" not in known or "reward" in corrections:
        return dict(known)
    parts = known["reward"].split("+")
    kept: list[str] = []
    for part in parts:
        takers = [target for target, text in corrections.items() if part in parts_of(text)]
        may_be_paid = bool(takers) and {*takers} <= {*PAID}
        if may_be_paid and len(parts) > 1:
            expected = f"--map reward=COLUMN beside it, since {part} may also be paid"
            fix = f"pass --map reward={'+'.join(parts)}, or those paid"
            faults.add(f"--map {takers[0]}={part}", "reward", expected=expected, found="no reward named", fix=fix)
        if may_be_paid or not takers:
            kept.append(part)
    others = {target: text for target, text in known.items() if target != "reward"}
    return others | ({"reward": "+".join(kept)} if kept else {})


def parts_of(text: str) -> set[str]:
    """A column, and the columns that it is put together of."""
    return {text, *(name.strip() for name in re.split(r"[+*]", text))}


def _guessed(rows: Rows, known: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """({target: column} by the names of columns, beside those that are `known`; what was left out and why).

    A column stands for one target; one without any value stands for none.
    """
    filled, settled = rows.filled, {*known}
    # One form of the prompt that the format knows is enough: another column would contradict it.
    if settled & {*PROMPTS}:
        settled |= {"prompt", "messages"}
    taken = {name for text in known.values() for name in parts_of(text)}
    guessed: dict[str, str] = {}
    for target, names in TARGETS.items():
        free = [name for name in names if name in filled and name not in taken]
        if target == "completion" and _hold_answers(rows, {**guessed, **known}):
            free = [name for name in free if name not in VAGUE]
        if target not in settled and free:
            guessed[target] = free[0]
            taken.add(free[0])
    name = guessed.get("prompt")
    if name is None or "rendered" in {*guessed, *known} or not isinstance(filled[name], str):
        return guessed, []
    # A prompt that is a text is rendered with markup; without, it is left out beside messages or ids.
    if MARKUP.match(filled[name]):
        guessed["rendered"] = guessed.pop("prompt")
        return guessed, []
    beside = [target for target in ("prompt_ids", "messages") if target in {*guessed, *known}]
    if not beside:
        return guessed, []
    del guessed["prompt"]
    note = f"`{name}` has no markup of a chat template and was left out: {beside[0]} say what the model saw"
    return guessed, [f"{note} (--map rendered={name} where it was this text)"]


def _hold_answers(rows: Rows, mapping: Mapping[str, str]) -> bool:
    """Whether the messages of the first row that has any end in a turn of the assistant."""
    for row in rows:
        for target in ("messages", "prompt"):
            messages = look_up(row.fields, mapping.get(target, ""))
            if isinstance(messages, list) and messages:
                return isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant"
    return False
