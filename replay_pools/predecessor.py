"""Reader of the published predecessor format: `step_NNN` or `prompt_NNNN` files without a manifest.

What it repairs is returned as sentences, never done silently. What the format does not record stays unknown: there are
no detectors, no isolation and no test counts, and `passed` is inferred from the reward. Prompt ids are not recorded
either: they are made by the tokenizer (`tokenize`) and checked against the recorded `plen`. Without a tokenizer they
stay empty, and `Pool.verify` says so.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from replay_pools.consistency import PREDECESSOR_GRADER, prompt_sha
from replay_pools.environments.loopholes import HINTED, ORIGINAL_PHRASE
from replay_pools.errors import InputError
from replay_pools.files import parse_python_json, read_gz
from replay_pools.padding import Endings, cut_padding, infer_endings
from replay_pools.rollout import REWARD_COMPILES, REWARD_PASSED, FinishReason, Grade, Rollout

UNKNOWN = "unknown"  # text fields that the format does not record
FILE_NAME = re.compile(r"(?:step|prompt)_(\d+)\.jsonl\.gz")
READ_FIELDS = {field.name for field in fields(Rollout)} | {"problem_messages"}
Tokenize = Callable[[str], list[int]]
Row = dict[str, Any]  # one line of a file, as recorded


def predecessor_files(directory: Path) -> list[Path]:
    """The group files of a directory in the predecessor format, in step order."""
    paths = [path for path in directory.iterdir() if FILE_NAME.fullmatch(path.name)]
    # By number, not by name: step_1000 comes after step_999.
    return sorted(paths, key=lambda path: (_number(path), path.name))


def read_predecessor(directory: Path, *, tokenize: Tokenize | None = None) -> tuple[list[list[Rollout]], list[str]]:
    """(groups in step order, what was repaired: one sentence each with the number of rollouts).

    Args:
        directory: holds the files.
        tokenize: prompt text to ids; None = leave the prompt ids empty.

    Raises:
        InputError: damaged file, missing field, a pool of the current format that lost its manifest, or prompt ids that
            disagree with the recorded `plen` (the tokenizer is another one).
    """
    log: Counter[str] = Counter()  # {sentence: number of rollouts}
    groups: list[tuple[int, Path, list[Row]]] = []  # step, file, rows
    for path in predecessor_files(directory):
        for problem_rows in _by_problem(_read_rows(path, log)):
            groups.append((_number(path), path, problem_rows))
    all_rows: list[Row] = []
    for _, _, rows in groups:
        all_rows += rows
    if len({step for step, _, _ in groups}) < len(groups):
        groups = [(step, path, rows) for step, (_, path, rows) in enumerate(groups)]
        log["steps were numbered anew, since a file held several problems or two files one number"] = len(all_rows)
    # Over all groups: a single one may have no padded completion to infer from.
    endings, scale = infer_endings([row["completion_ids"] for row in all_rows]), _Scale.of(all_rows)
    if endings.eos is None:
        log["no id ends turns: completions are stored as sampled, with their end-of-turn id"] = len(all_rows)
    convert = partial(_convert, endings=endings, scale=scale, tokenize=tokenize, log=log)
    steps: list[list[Rollout]] = []
    for step, path, rows in groups:
        steps.append([convert(row, f"{path} row {i}", step, i) for i, row in enumerate(rows)])
    return steps, [f"{sentence} ({count} rollouts)" for sentence, count in log.items()]


def common_tail(rollouts: Sequence[Rollout]) -> str:
    """The text that the template put after the last message of every prompt: the longest suffix common to all."""
    common: str | None = None
    for rollout in rollouts:
        # `rpartition` refuses an empty separator; "\0" is in no prompt, so an empty message leaves the whole prompt.
        last_message = rollout.messages[-1]["content"].strip() or "\0"
        tail = rollout.prompt.rpartition(last_message)[2]
        common = tail if common is None else common
        while not tail.endswith(common):
            common = common[1:]
    return common or ""


def known_header(steps: Sequence[Sequence[Rollout]]) -> dict[str, Any]:
    """The header fields that can be read off the rollouts."""
    rollouts = [rollout for group in steps for rollout in group]
    plan = {}
    for name in ("env", "env_mode", "hint"):
        plan[name] = sorted({getattr(rollout, name) for rollout in rollouts})
    return {
        "policy": {"base_model": None, "adapter": None},
        "prompt_tail": common_tail(rollouts),
        "plan": plan,
        "grader": {"version": PREDECESSOR_GRADER, "isolation": UNKNOWN},
        "versions": {},
    }


def _number(path: Path) -> int:
    """NNN of `step_NNN.jsonl.gz` or `prompt_NNN.jsonl.gz`."""
    return int(path.name.partition("_")[2].partition(".")[0])


def _read_rows(path: Path, log: Counter[str]) -> list[Row]:
    """The rows of one file; a bare NaN or infinity becomes null."""
    rows: list[Row] = []
    for number, line in enumerate(read_gz(path).splitlines(), 1):
        where = f"{path} line {number}"
        constants: list[str] = []
        # The predecessor wrote with the json of the standard library, whose NaN orjson refuses. `append` notes the
        # constant and returns None, which becomes its value.
        row = parse_python_json(line, where, constants.append)
        if not isinstance(row, dict):
            raise InputError(where, expected="an object", found=type(row).__name__)
        ids = _need(row, "completion_ids", list, where)
        if not_ints := [token for token in ids if type(token) is not int]:
            raise InputError(f"{where} completion_ids", expected="token ids", found=repr(not_ints[0]))
        if "grade" in row:  # which the predecessor's rows never have
            raise InputError(path.parent, expected="manifest.json", found="a pool without it", fix="generate it again")
        if constants:
            log["bare NaN or infinity became null"] += 1
        if extra := sorted(row.keys() - READ_FIELDS):
            log[f"fields were left out: {', '.join(extra)}"] += 1
        rows.append(row)
    if not rows:
        raise InputError(path, expected="rollouts, one a line", found="an empty file")
    return rows


def _by_problem(rows: list[Row]) -> list[list[Row]]:
    """The rows of each problem, in the order of first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row.get("problem_id")), []).append(row)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Scale:
    """How the rewards of a pool say whether a rollout passed and whether its source compiles.

    On the predecessor's scale a pass earns 3 and source that compiles 0.5. On any other scale a rollout passed if it
    earned more than the least of the pool, and compiles if its format is right.
    """

    is_predecessors: bool
    least: float  # reward in the pool

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Scale":
        """The scale of a pool; rewards that are missing or no numbers are refused later, with their place."""
        rewards: list[float] = []
        for row in rows:
            if isinstance(row.get("reward"), (int, float)):
                rewards.append(float(row["reward"]))
        # With 0.5 and 3 the highest reward is at most 0.5 (nothing passed) or at least 3 (something did).
        is_predecessors = not REWARD_COMPILES < max(rewards, default=0.0) < REWARD_PASSED
        return cls(is_predecessors, min(rewards, default=0.0))

    def passed(self, reward: float) -> bool:
        return reward >= REWARD_PASSED if self.is_predecessors else reward > self.least

    def compiles(self, row: Row) -> bool:
        if not self.is_predecessors:
            return row["fmt_ok"]
        return row["reward"] - REWARD_PASSED * self.passed(row["reward"]) >= REWARD_COMPILES

    @property
    def words(self) -> str:
        """The rule as part of a sentence."""
        if self.is_predecessors:
            return f"passed is reward >= {REWARD_PASSED:g}, compiles {REWARD_COMPILES:g} more"
        return f"passed is a reward above {self.least:g}, the least of the pool; compiles is fmt_ok"


def _convert(
    row: Row,
    where: str,
    step: int,
    sample_id: int,
    *,
    endings: Endings,
    scale: _Scale,
    tokenize: Tokenize | None,
    log: Counter[str],
) -> Rollout:
    """The rollout of a row. Every field that the row does not record as it is needed adds to `log`."""
    prompt, plen = _need(row, "prompt", str, where), _need(row, "plen", int, where)
    messages = _messages(row, where)
    stored_ids = row["completion_ids"]
    completion_ids = cut_padding(stored_ids, row.get("comp_len"), endings)
    cut_ids = stored_ids[len(completion_ids) :]
    # Padding is one id repeated. Anything else behind `comp_len` is content, which must not be lost silently.
    if len(set(cut_ids)) > 1:
        raise InputError(
            f"{where} comp_len",
            expected="all completion_ids, or padding behind them",
            found=f"{len(set(cut_ids))} different ids behind the first {len(completion_ids)} of {len(stored_ids)}",
        )
    if cut_ids:
        log[f"right padding (id {endings.pad}) was cut; id {endings.eos} is taken for the end of a turn"] += 1
    if row.get("sample_id", sample_id) != sample_id:
        log["sample_id was counted anew within the step"] += 1
    if "finish_reason" not in row:
        log["finish_reason was inferred from the last id and the length"] += 1
    if "hint" not in row:
        log[f"hint was inferred: the prompt says {HINTED!r} and lacks {ORIGINAL_PHRASE!r}"] += 1
    if missing := [name for name in ("env", "env_mode") if name not in row]:
        log[f"not recorded, so {UNKNOWN!r}: {', '.join(missing)}"] += 1
    log[f"the grade holds labels only: {scale.words}; no detectors, no test counts, isolation unknown"] += 1
    logprobs = row.get("sampling_logprobs")
    return Rollout(
        step=step,
        sample_id=sample_id,
        problem_id=str(_need(row, "problem_id", (int, str), where)),
        messages=messages,
        prompt=prompt,
        prompt_ids=_prompt_ids(row, prompt, plen, where, tokenize, log),
        plen=plen,
        completion=_need(row, "completion", str, where),
        completion_ids=completion_ids,
        comp_len=len(completion_ids),
        finish_reason=row.get("finish_reason") or _finish_reason(completion_ids, bool(cut_ids), endings),
        sampling_logprobs=logprobs and logprobs[: len(completion_ids)],
        reward=float(_need(row, "reward", (int, float), where)),
        hacked=_need(row, "hacked", bool, where),
        gt_pass=_need(row, "gt_pass", bool, where),
        fmt_ok=_need(row, "fmt_ok", bool, where),
        env=str(row.get("env", UNKNOWN)),
        env_mode=str(row.get("env_mode", UNKNOWN)),
        hint=bool(row.get("hint", HINTED in prompt and ORIGINAL_PHRASE not in prompt)),
        prompt_sha=prompt_sha(prompt),
        grade=_grade(row, scale),
    )


def _need(row: Row, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """The value of a field that cannot be inferred; InputError where it is missing or of another type."""
    value = row.get(name)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):  # a bool is an instance of int
        return value
    if name not in row:
        actual = f"no such field, only {', '.join(sorted(row))}"
    elif value is None:
        actual = "null, NaN or infinity"
    else:
        actual = repr(value)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    raise InputError(f"{where} {name}", expected=" or ".join(allowed.__name__ for allowed in kinds), found=actual)


def _messages(row: Row, where: str) -> list[dict[str, str]]:
    """`messages`, which older files call `problem_messages`."""
    messages = row.get("messages") or row.get("problem_messages")
    keys = {"role", "content"}
    if not isinstance(messages, list) or not all(isinstance(item, dict) and keys <= item.keys() for item in messages):
        raise InputError(f"{where} messages", expected="a list of role and content", found=repr(messages)[:60])
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _prompt_ids(
    row: Row, prompt: str, plen: int, where: str, tokenize: Tokenize | None, log: Counter[str]
) -> list[int]:
    """The recorded ids, else the tokenizer's (which must be `plen` many), else none."""
    if "prompt_ids" in row:
        return row["prompt_ids"]
    if tokenize is None:
        log["prompt_ids are not recorded: give the model of the pool to tokenize the prompts"] += 1
        return []
    ids = tokenize(prompt)
    if len(ids) != plen:
        raise InputError(
            f"{where} prompt_ids",
            expected=f"plen = {plen} ids",
            found=f"{len(ids)}",
            fix="use the model that sampled it",
        )
    log["prompt_ids were made by the tokenizer and agree with plen"] += 1
    return ids


def _finish_reason(ids: list[int], was_padded: bool, endings: Endings) -> FinishReason:
    """A completion has stopped if it was padded, ends a turn, or (where no id ends turns) is not among the longest."""
    ends_turn = ids[-1:] == [endings.eos]
    is_shorter = endings.eos is None and len(ids) < endings.longest
    return "stop" if was_padded or ends_turn or is_shorter else "length"


def _grade(row: Row, scale: _Scale) -> Grade:
    """The labels of a row as a Grade."""
    passed = scale.passed(row["reward"])
    exploited = passed and not row["gt_pass"]
    return Grade(
        fmt_ok=row["fmt_ok"],
        compiles=scale.compiles(row),
        passed=passed,
        gt_correct=row["gt_pass"],
        hacked=row["hacked"],
        exploited=exploited,
        mechanism=str(row.get("env_mode", UNKNOWN)) if exploited else "none",
        flaky=None,
        detectors={},
        num_tests=0,
        num_tests_passed=0,
        isolation=UNKNOWN,
        grader=PREDECESSOR_GRADER,
        error=None,
    )
