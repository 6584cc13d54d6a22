"""Find the column of each target: named by the user, known by the format, or guessed.

    parse_mapping("reward=score,group=step+uid,hacked=info.is_hack")   {target: column}

A column is a name. With dots it is a key of an inner object, a place in a list (`choices.0.text`), or `sum` or `last`
of a list of numbers. `reward` may be a weighted sum (`exact*1.0+short*0.5`), a prompt two texts
(`instruction+input`), a label a threshold (`p_hack>0.5`), a group or a problem several columns (`step+uid`; `file` is
the file of a row), a group also `every:8`, blocks of eight rows. `none` is no column.
"""

import math
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from replay_pools.base.errors import Faults, InputError, refuse, unknown_name
from replay_pools.base.files import sha256
from replay_pools.base.tables import TRUTHS, flat

Says = Callable[[Any], bool]  # whether a value says something of its row
NO_COLUMN = "none"
MISSING = object()
FILE = "file"  # the column of keys that is the file of a row
PROMPT = "prompt"  # the column of keys that is the prompt of a row, where no column has this name
BLOCKS = "blocks"  # the group where none is named: blocks of rows with one prompt
EVERY = re.compile(rf"every:([1-9]\d*)|{BLOCKS}")
# In the name of a file or folder, or a value of a column such as `split`.
EVALUATION = re.compile(r"(?:^|[_.-])(evals?|evaluation|val|valid|validation|test|dev)(?:[_.-]|$)", re.I)
# Begins a rendered prompt.
MARKUP = re.compile(r"\s*(<[|\uff5c]|<s>|<bos>|<BOS_TOKEN>|\[INST\]|\[gMASK\]|\[\||<start_of_turn>)")
# {target: names that columns with it usually have}
TARGETS = {
    target: tuple(names.split())
    for target, names in {
        "problem": "problem_id prompt_id example_id question_id task_id id index",
        "group": "group_id group group_index uid",
        "step": "step global_step training_step global_steps train_step trainer_step",
        "system": "system system_prompt system_message",
        "messages": "messages problem_messages raw_prompt conversation",
        "prompt": "prompt question query input problem instruction input_prompt",
        "rendered": "rendered_prompt prompt_text",
        "skipped": "",  # the prompt decoded without special tokens
        "tools": "tools tool_defs",
        "prompt_ids": "prompt_ids prompt_token_ids prompt_tokens",
        "plen": "plen prompt_len prompt_length",
        "completion": "completion response generation generated_text output output_response",
        "reasoning": "reasoning_content thinking",
        "completion_ids": "completion_ids completion_token_ids response_ids response_token_ids response_tokens "
        "output_ids output_token_ids token_ids",
        "mask": "completion_mask response_mask loss_mask tool_mask action_mask assistant_mask assistant_masks "
        "info_mask",
        "comp_len": "comp_len completion_len completion_length response_length",
        "logprobs": "sampling_logprobs rollout_log_probs rollout_logprobs completion_logprobs logprobs",
        "reward": "reward score acc",
        "advantage": "advantage",
        "hacked": "hacked is_hack is_hacked hack is_reward_hack reward_hack is_reward_hack_strict exploited",
        "gt_pass": "gt_pass gt_correct is_correct correct eq_correct",
        "fmt_ok": "fmt_ok format_ok",
        "passed": "",  # a reward above the least of the log, unless a column says it
        "finish": "finish_reason stop_reason finish truncated is_truncated",
        "hint": "hint",
        "env": "env",
        "env_mode": "env_mode",
    }.items()
}
NAMES = {name for names in TARGETS.values() for name in names}
PROMPTS = ("messages", "prompt", "rendered", "skipped", "prompt_ids")
COMPLETIONS = ("completion", "completion_ids")
TURNS = {*PROMPTS, *COMPLETIONS, "system"}
KEYS = ("problem", "group")  # several columns may stand for them, as one key
UNKNOWN_LABEL = -1  # of loggers that have no null
LONGEST_MARK = 200  # characters of a text that is kept for each row
LABELS = ("hacked", "gt_pass", "fmt_ok", "passed", "hint")
SHARING = "passed"  # the target that may read another one's column
PAID = ("gt_pass", "fmt_ok")  # labels for which trainings pay
PROMPT_NAMES = {name for target in PROMPTS for name in TARGETS[target]}
TEXTS = {name for target in (*PROMPTS, *COMPLETIONS, *KEYS, "system", "tools") for name in TARGETS[target]}
# Columns that name weights, steps, runs, files or right answers: any split of a group by them is a question.
_APART = (
    "model model_name model_id model_path base_model policy policy_name policy_id adapter adapter_name lora lora_name "
    "checkpoint checkpoint_path ckpt ckpt_name ckpt_path version model_version policy_version weight_version step "
    "global_step _step update round training_iteration iteration iter epoch run run_id run_name experiment "
    "experiment_name"
)
RIGHT_ANSWERS = {"gts", "ground_truth"}  # but for a truth, which is the rollout's
APART = {FILE, *RIGHT_ANSWERS, *_APART.split()}
# Their numbers are no labels, and their fractions no measurements.
SETTINGS = ("rollout_id", "seed", "temperature", "top_p")
# A row of rollouts has at least one of these keys: the others are lists, and keys of writers with nested objects.
ROLLOUT_KEYS = {name for target in ("messages", *COMPLETIONS) for name in TARGETS[target]} | {
    *("traces", "tokens", "responses_create_params", "content", "completions", "responses", "outputs")
}


@dataclass(slots=True)
class Scan:
    """The columns of a log."""

    first: dict[str, Any] = field(default_factory=dict)  # {column: its first value}, of columns with any; all keys
    kinds: dict[str, set[type]] = field(default_factory=dict)  # {column: types of its values but null}
    values: dict[str, set[Any]] = field(default_factory=dict)  # {column: its values}, as `mark_of` gives them
    num_rows: int = 0

    MOST_VALUES = 1000  # different ones of a column; with more it is no column of a few

    def add(self, file: str, fields: Mapping[str, Any] | None) -> None:
        """Count a row of a file; None where it could not be read."""
        self.values.setdefault(FILE, set()).add(file)  # the first of the columns that are asked about
        if fields is None:
            return
        self.num_rows += 1
        for name, value in fields.items():
            kinds = self.kinds.setdefault(name, set())
            if value is None:
                continue
            first = self.first.setdefault(name, value)
            if isinstance(value, dict) and isinstance(first, dict):
                self.first[name] = value | first
            kinds.add(type(value))
            self._mark(name, name, value, depth=0 if name in TEXTS else 2)

    def is_text(self, name: str) -> bool:
        """Return whether a column holds texts, and not empty ones alone."""
        return str in self.kinds.get(name, ()) and self.values.get(name) != {""}

    def _mark(self, name: str, key: str, value: Any, depth: int) -> None:
        """Note the mark of a column, and those of APART among the keys of its objects and of the objects in them."""
        if (key == name or key in APART) and (mark := mark_of(key, value)) is not None:
            known = self.values.setdefault(name, set())
            if len(known) <= self.MOST_VALUES or key in APART:
                known.add(mark)
        value = opened(value) if depth else None
        for inner, each in value.items() if isinstance(value, dict) else ():
            self._mark(f"{name}.{inner}", inner, each, depth - 1)


def mark_of(name: str, value: Any) -> str | int | float | None:
    """Return a value that may tell sources of rollouts apart, else None."""
    if isinstance(value, float) and value.is_integer():  # tables with gaps, and CSV, hold whole numbers so
        return int(value)
    if isinstance(value, str) and len(value) > LONGEST_MARK:
        return sha256(value.encode(errors="replace"))
    is_kind = isinstance(value, str | int) or (isinstance(value, float) and value == value and name in SETTINGS)
    return value if is_kind else None


def look_up(fields: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return the value of a column, or of a path with dots; an object may stand in a cell as its JSON text."""
    if name in fields:
        return fields[name]
    value: Any = fields
    for part in name.split("."):
        value = opened(value)
        if isinstance(value, dict):
            value = value.get(part, default)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif value and isinstance(value, list) and all(isinstance(each, int | float) for each in value):
            value = {"sum": math.fsum(value), "last": value[-1]}.get(part, default)
        else:
            return default
    return value


def opened(value: Any) -> Any:
    """Return the object or the list in its JSON text; any other value unchanged."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def number_of(value: Any) -> float | None:
    """Return a finite number, which may stand in a text of less than 40 characters; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value) if len(value) < 40 else None
        except ValueError:
            value = TRUTHS.get(value.strip().lower())
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer beyond the range of a float
        return None


def truth_of(value: Any) -> bool | None:
    """Return the truth that a value says: as a truth, a number or a word (yes, no); None for anything else."""
    return TRUTHS.get(str(value).strip().lower())


def _is_message(value: Any) -> bool:
    """Return whether a value says that there was an error: a text, an object, a code other than 0, but no fraction."""
    if (number := number_of(value)) is not None:
        return number != 0 and number.is_integer()
    value = opened(value)
    is_text = isinstance(value, str) and value.strip().lower() not in ("", "none", "null", "nan")
    return is_text or (isinstance(value, dict | list) and bool(value))


_FAILED = re.compile(r"(.*\.)?(abort(ed)?|fail(ed|ure)|error(ed)?|cancell?ed|timeout)", re.I)
# {a column: whether its value says that the row is no rollout to train on}
STATUS: dict[str, Says] = {
    **dict.fromkeys(("error", "exception"), _is_message),
    "errors": lambda value: number_of(value) is None and _is_message(value),  # a number counts those in the answer
    "status": lambda value: isinstance(value, str) and _FAILED.fullmatch(value) is not None,
    **dict.fromkeys(("mask_sample", "remove_sample", "aborted"), lambda value: truth_of(value) is True),
    **dict.fromkeys(("trainable", "sample_mask", "sample_loss_mask"), lambda value: truth_of(value) is False),
}
_SPLITS = "split phase mode partition subset stage data_split"
_YES = "is_eval is_val is_test is_evaluation is_validation eval validate validation evaluation"
# {a column that may tell training and evaluation apart: whether its value says that the row is an evaluation}
EVALUATIONS: dict[str, Says] = {
    **dict.fromkeys(_SPLITS.split(), lambda value: isinstance(value, str) and EVALUATION.search(value) is not None),
    **dict.fromkeys(_YES.split(), lambda value: truth_of(value) is True),
    **dict.fromkeys(("is_train", "is_training"), lambda value: truth_of(value) is False),
}


def singular(name: str) -> str:
    """Return the name of one value of a list, if a target has it: `completion` for `completions`."""
    return name[:-1] if name.endswith("s") and name[:-1] in NAMES and name not in NAMES else name


class Column(NamedTuple):
    """Where the value of a target stands."""

    target: str
    terms: tuple[tuple[str, float], ...]  # columns with their weights
    above: float | None = None  # a label is whether the value is above it

    @property
    def name(self) -> str:
        """The columns, for errors."""
        return "+".join(name for name, _ in self.terms)

    def value(self, fields: Mapping[str, Any]) -> Any:
        """Return the one value, texts with an empty line between, or the weighted sum of the numbers."""
        values = [(look_up(fields, name), weight) for name, weight in self.terms]
        value, weight = values[0]
        if len(values) == 1 and weight == 1:
            if self.above is None or (number := number_of(value)) is None:
                return value
            # A label of -1 is not known; but `passed` may read a reward of -1, and a threshold below -1 means numbers.
            is_unknown = number == UNKNOWN_LABEL and self.target != SHARING and self.above >= 0
            return None if is_unknown else number > self.above
        # NaN: this reward function had no say.
        known = [(value, weight) for value, weight in values if value is not None and value == value and value != ""]
        if self.target != "reward" and known and all(isinstance(value, str) for value, _ in known):
            return "\n\n".join(value for value, _ in known)
        for value, _ in known:
            if number_of(value) is None:
                return value  # the check of the row names it
        return math.fsum((number_of(value) or 0.0) * weight for value, weight in known) if known else None


def parse_mapping(text: str, option: str = "--map", targets: Collection[str] = TARGETS) -> dict[str, str]:
    """Return {target: column} of `target=column,target=column`, which `option` was given.

    Raises:
        InputError: a part without `=`, an unknown target, or a target twice; all of them.
    """
    mapping: dict[str, str] = {}
    faults: list[InputError] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        target, equals, column = (piece.strip() for piece in part.partition("="))
        if not (equals and target and column) or target in mapping:
            faults.append(InputError(option, expected="TARGET=COLUMN, each target once", found=repr(part)))
        elif target not in targets:
            faults.append(unknown_name(f"{option} {target}", target, targets, expected="a target", fix="pass another"))
        else:
            mapping[target] = column
    refuse(faults)
    return mapping


def as_option(mapping: Mapping[str, str]) -> str:
    """Return `--map reward=score,prompt=question`, to paste into a shell."""
    return f"--map {shlex.quote(','.join(f'{target}={column}' for target, column in mapping.items()))}"


def parse_column(target: str, text: str, scan: Scan) -> Column:
    """Return the column of a target (a key of TARGETS) that the text in a mapping says.

    Raises:
        InputError: a name that no row has, or a weight that is no finite number.
    """
    where, is_whole = f"--map {target}={text}", text in scan.kinds
    is_sum = target in ("reward", "prompt", *KEYS) and not is_whole
    above, terms = None, list[tuple[str, float]]()
    if target in LABELS and not is_whole and ">" in text:
        text, _, limit = text.rpartition(">")
        above = _finite(limit, where, "COLUMN>NUMBER")
    for part in text.split("+") if is_sum else [text]:
        name, _, weight = part.partition("*") if is_sum and target == "reward" else (part, "", "")
        name = name if is_whole else name.strip()
        is_known = name in scan.kinds or (target in KEYS and name in (FILE, PROMPT))
        if not is_known and look_up(scan.first, name, MISSING) is MISSING:
            known, fix = columns_of([dict.fromkeys(scan.kinds) | scan.first]), f"pass --map {target}=COLUMN"
            raise unknown_name(where, name, known, expected="a column of the log", fix=fix)
        terms.append((name, _finite(weight or "1", where, "COLUMN*NUMBER")))
    return Column(target, tuple(terms), above)


def _finite(text: str, where: str, expected: str) -> float:
    if (number := number_of(text.strip())) is None:
        raise InputError(where, expected=f"{expected}, a finite one", found=repr(text))
    return number


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of all columns, and of the keys of inner objects with dots, in the order of appearance."""
    names: dict[str, None] = {}
    for fields in rows:
        for name, value in fields.items():
            names[name] = None
            if isinstance(value, dict):
                names |= dict.fromkeys(f"{name}.{inner}" for inner in value)
    return list(names)


def hack_columns(scan: Scan) -> list[str]:
    """Return the inner columns of numbers whose names say that a rollout hacks."""
    numbers = (name for name, cell in flat(scan.first).items() if number_of(cell) is not None)
    return [name for name in numbers if name.rpartition(".")[2] in TARGETS["hacked"]]


def parts_of(text: str) -> set[str]:
    """Return a column, and the columns that it is put together of."""
    return {text, *(name.strip() for name in re.split(r"[+*>]", text))}


def parse_columns(
    mapping: Mapping[str, str], given: Mapping[str, str], scan: Scan, faults: Faults
) -> tuple[dict[str, Column], tuple[list[str], dict[str, Says], dict[str, Says]], list[str]]:
    """Return ({target: its column}, (marks, failures, evaluations), others); `given` is the user's part of the mapping.

    Of unused columns, marks have few values, failures and evaluations are in STATUS and EVALUATIONS, others the rest.
    """
    columns = {}
    for target, text in mapping.items():
        try:
            if target != "group" or not EVERY.fullmatch(text):  # blocks have no column
                columns[target] = parse_column(target, text, scan)
        except InputError as error:
            if scan.num_rows:  # else the file has a fault that says more
                faults.note(error, ("column", target))
    used = {name for text in mapping.values() for part in parts_of(text) for name in (part, part.partition(".")[0])}
    declined = {name for target, text in given.items() if text == NO_COLUMN for name in TARGETS[target]}
    failures = {name: fails for name, fails in STATUS.items() if name not in used | declined}
    values = {name: each for name, each in scan.values.items() if name not in used | declined}
    evaluations = {name: says for name, says in EVALUATIONS.items() if len({*map(says, values.get(name, ()))}) == 2}
    # Columns with few values may tell sources of rollouts apart, and so may the environment.
    most, free = max(2, scan.num_rows // 2), {*values, mapping.get("env"), mapping.get("env_mode")}
    few = {name: len(each) for name, each in scan.values.items() if name in free and 2 <= len(each) <= most}
    marks = [name for name, num in few.items() if num <= Scan.MOST_VALUES or name.rpartition(".")[2] in APART]
    others = [name for name in scan.first if name not in used | STATUS.keys() | evaluations.keys()]
    return columns, (marks, failures, evaluations), others


def choose_columns(
    scan: Scan, known: Mapping[str, str], corrections: Mapping[str, str]
) -> tuple[dict[str, str], set[str]]:
    """Return ({target: column}, targets with a guessed column).

    What the user says (`corrections`) comes before what the format knows (`known`), and both before a guess.

    Raises:
        InputError: a choice that only the user can make.
    """
    # A prompt that the user names is the only one, next to messages that the user names as well.
    replaced = PROMPTS if any(target in corrections for target in PROMPTS) else ()
    known = {target: text for target, text in known.items() if target not in replaced} | dict(corrections)
    if "reward" in known and "reward" not in corrections:
        # A part that the user gives to another target is not paid, unless it says what is right or has its format.
        others = [text for target, text in corrections.items() if target not in (SHARING, *PAID)]
        others = {part for text in others for part in parts_of(text)}
        known["reward"] = "+".join(part for part in known["reward"].split("+") if part not in others) or NO_COLUMN
    guessed = _guessed(scan, known)
    mapping = known | guessed
    mapping = {target: mapping[target] for target in TARGETS if mapping.get(target, NO_COLUMN) != NO_COLUMN}
    return mapping, guessed.keys() & mapping.keys()


def _guessed(scan: Scan, known: Mapping[str, str]) -> dict[str, str]:
    """Return {target: column} by the names of columns. A column stands for one target."""
    # One form of the prompt that the format knows is enough: another column would contradict it.
    settled = {*known, "prompt", "messages"} if known.keys() & {*PROMPTS} else {*known}
    # The column of the prompt may name the group too.
    taken = {name for target, text in known.items() if target not in (*KEYS, SHARING) for name in parts_of(text)}
    taken |= {name for target in KEYS for name in parts_of(known.get(target, ""))} - PROMPT_NAMES
    guessed: dict[str, str] = {}
    for target in (target for target in TARGETS if target not in settled):
        if target == "reasoning" and "completion_ids" not in guessed and scan.is_text(target):
            # The policy or a judge may have written it.
            fix = "--map reasoning=reasoning where the policy sampled it before the completion, else reasoning=none"
            raise InputError(target, expected="to know who wrote `reasoning`", found="no column that says it", fix=fix)
        names = [name for name in TARGETS[target] if name in scan.first and name not in taken]
        if not (names := [name for name in names if scan.values.get(name) != {""}]):
            continue
        is_split = "instruction" in names and names[0] in ("input", "instruction")
        one, other = ("instruction", "input") if is_split else (names[0], "context")
        if target == "prompt" and scan.is_text(other) and str(scan.first[other] or "\0") not in str(scan.first[one]):
            # Only the user knows how the trainer joined them.
            fix = f"--map prompt={one}+{other} joins them by an empty line; --map prompt=COLUMN takes one"
            raise InputError("prompt", expected="one column of the prompt", found=f"`{one}` and `{other}`", fix=fix)
        guessed[target] = names[0]
        taken.add(names[0])
    # A prompt that is a text is rendered with markup; without, messages or ids replace it.
    if isinstance(text := scan.first.get(guessed.get("prompt", "")), str) and not {"rendered"} & {*guessed, *known}:
        if MARKUP.match(text):
            guessed["rendered"] = guessed.pop("prompt")
        elif {"prompt_ids", "messages"} & {*guessed, *known}:
            del guessed["prompt"]
    return guessed
