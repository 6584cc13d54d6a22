"""Reader of the published predecessor format: `step_NNN` or `prompt_NNNN` files without a manifest.

What it repairs is returned as sentences, never done silently. What the format does not know stays unknown: there are
no detectors, no isolation and no test counts, and `passed` is read off the reward. Prompt ids are not stored there
either, so they are the tokenizer's (`tokenize`), checked against the recorded `plen`; without one they stay empty, and
`Pool.verify` says so.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import Any

from replay_pools.consistency import PREDECESSOR_GRADER, prompt_sha
from replay_pools.environments.loopholes import HINTED, ORIGINAL_PHRASE
from replay_pools.errors import InputError
from replay_pools.files import read_gz
from replay_pools.padding import Endings, cut_padding, infer_endings
from replay_pools.rollout import REWARD_COMPILES, REWARD_PASSED, FinishReason, Grade, Rollout

UNKNOWN = "unknown"
FILE_NAME = re.compile(r"(?:step|prompt)_(\d+)\.jsonl\.gz")
READ_FIELDS = {field.name for field in fields(Rollout)} | {"problem_messages"}
Tokenize = Callable[[str], list[int]]
Row = dict[str, Any]


def predecessor_files(directory: Path) -> list[Path]:
    """The group files of a directory in the predecessor format, in step order."""
    found = [path for path in directory.iterdir() if FILE_NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (_number(path), path.name))


def read_predecessor(directory: Path, *, tokenize: Tokenize | None = None) -> tuple[list[list[Rollout]], list[str]]:
    """All groups in step order, and what was normalised.

    Raises:
        InputError: damaged file, missing field, a pool of ours that lost its manifest, or prompt ids that disagree with
            the recorded `plen` (the tokenizer is another one).
    """
    log: Counter[str] = Counter()
    groups = [
        (_number(path), path, rows)
        for path in predecessor_files(directory)
        for rows in _by_problem(_read_rows(path, log))
    ]
    if len({number for number, _, _ in groups}) < len(groups):
        groups = [(step, path, rows) for step, (_, path, rows) in enumerate(groups)]
        log["steps were numbered anew, since a file held several problems or two files one number"] = sum(
            len(rows) for _, _, rows in groups
        )
    everything = [row for _, _, rows in groups for row in rows]
    endings, scale = infer_endings([row["completion_ids"] for row in everything]), _Scale.of(everything)
    if endings.eos is None:
        log["no id ends turns: completions are stored as sampled, with their end-of-turn id"] = len(everything)
    steps = [
        [_convert(row, f"{path} row {i}", step, i, endings, scale, tokenize, log) for i, row in enumerate(rows)]
        for step, path, rows in groups
    ]
    return steps, [f"{sentence} ({count} rollouts)" for sentence, count in log.items()]


def common_tail(rollouts: Sequence[Rollout]) -> str:
    """What the template put after the last message of every prompt (common to all, possibly empty)."""
    tails = [r.prompt.rpartition(r.messages[-1]["content"].strip() or "\0")[2] for r in rollouts]
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*map(reversed, tails), strict=False))
    return "".join(column[0] for column in columns)[::-1]


def known_header(steps: Sequence[Sequence[Rollout]]) -> dict[str, Any]:
    """The manifest fields that the rollouts themselves tell; the others are unknown."""
    rollouts = [rollout for group in steps for rollout in group]
    plan = {name: sorted({getattr(rollout, name) for rollout in rollouts}) for name in ("env", "env_mode", "hint")}
    return {
        "policy": {"base_model": None, "adapter": None},
        "prompt_tail": common_tail(rollouts),
        "plan": plan,
        "grader": {"version": PREDECESSOR_GRADER, "isolation": UNKNOWN},
        "versions": {},
    }


def _number(path: Path) -> int:
    """NNN of `step_NNN.jsonl.gz`."""
    return int(path.name.partition("_")[2].partition(".")[0])


def _read_rows(path: Path, log: Counter[str]) -> list[Row]:
    """The rows of one file; a bare NaN or infinity becomes null."""
    rows = []
    for number, line in enumerate(read_gz(path).splitlines(), 1):
        where = f"{path} line {number}"
        constants: list[str] = []
        try:
            row = json.loads(line, parse_constant=constants.append)
        except ValueError as error:
            raise InputError(where, expected="JSON", found=str(error)) from error
        if not isinstance(row, dict):
            raise InputError(where, expected="an object", found=type(row).__name__)
        ids = _need(row, "completion_ids", list, where)
        if strange := [item for item in ids if type(item) is not int]:
            raise InputError(f"{where} completion_ids", expected="token ids", found=repr(strange[0]))
        if "grade" in row:
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
    """One list a problem, in the order of first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row.get("problem_id")), []).append(row)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Scale:
    """What a reward says of a rollout: the predecessor's 3 for a pass and 0.5 for source that compiles; on any other
    scale, whether it is more than the least of the pool.
    """

    own: bool
    least: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Scale":
        rewards = [float(reward) for row in rows if isinstance(reward := row.get("reward"), (int, float))]
        own = not REWARD_COMPILES < max(rewards, default=0.0) < REWARD_PASSED  # nothing passed, or something did
        return cls(own, min(rewards, default=0.0))

    def passed(self, reward: float) -> bool:
        return reward >= REWARD_PASSED if self.own else reward > self.least

    def compiles(self, row: Row) -> bool:
        rest = row["reward"] - REWARD_PASSED * self.passed(row["reward"])
        return rest >= REWARD_COMPILES if self.own else row["fmt_ok"]

    @property
    def words(self) -> str:
        if self.own:
            return f"passed is reward >= {REWARD_PASSED:g}, compiles {REWARD_COMPILES:g} more"
        return f"passed is a reward above {self.least:g}, the least of the pool; compiles is fmt_ok"


def _convert(
    row: Row,
    where: str,
    step: int,
    sample_id: int,
    endings: Endings,
    scale: _Scale,
    tokenize: Tokenize | None,
    log: Counter[str],
) -> Rollout:
    """One rollout; every field that the row does not state plainly is logged."""
    prompt, plen = _need(row, "prompt", str, where), _need(row, "plen", int, where)
    messages = _messages(row, where)
    completion_ids = cut_padding(row["completion_ids"], row.get("comp_len"), endings)
    if len(behind := {*row["completion_ids"][len(completion_ids) :]}) > 1:
        found = f"{len(behind)} different ids behind the first {len(completion_ids)} of {len(row['completion_ids'])}"
        raise InputError(f"{where} comp_len", expected="all completion_ids, or padding behind them", found=found)
    if (cut := len(row["completion_ids"]) - len(completion_ids)) > 0:
        log[f"right padding (id {endings.pad}) was cut; id {endings.eos} is taken for the end of a turn"] += 1
    if row.get("sample_id", sample_id) != sample_id:
        log["sample_id was counted anew within the step"] += 1
    if "finish_reason" not in row:
        log["finish_reason was inferred from the last id and the length"] += 1
    if "hint" not in row:
        log[f"hint was inferred: the prompt says {HINTED!r} and lacks {ORIGINAL_PHRASE!r}"] += 1
    if unknown := [name for name in ("env", "env_mode") if name not in row]:
        log[f"not recorded, so {UNKNOWN!r}: {', '.join(unknown)}"] += 1
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
        finish_reason=row.get("finish_reason") or _finish_reason(completion_ids, cut, endings),
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
    """A field that cannot be guessed."""
    if not isinstance(value := row.get(name), kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        found = "null, NaN or infinity" if value is None else repr(value)
        found = found if name in row else f"no such field, only {', '.join(sorted(row))}"
        raise InputError(f"{where} {name}", expected=" or ".join(k.__name__ for k in kinds), found=found)
    return value


def _messages(row: Row, where: str) -> list[dict[str, str]]:
    """`messages`, which older files call `problem_messages`."""
    messages = row.get("messages") or row.get("problem_messages")
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and {"role", "content"} <= m.keys() for m in messages
    ):
        raise InputError(f"{where} messages", expected="a list of role and content", found=repr(messages)[:60])
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _prompt_ids(
    row: Row, prompt: str, plen: int, where: str, tokenize: Tokenize | None, log: Counter[str]
) -> list[int]:
    """Recorded ids, else the tokenizer's (as many as `plen` says), else none."""
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


def _finish_reason(ids: list[int], cut: int, endings: Endings) -> FinishReason:
    """A completion that was padded, ends with the end-of-turn id, or is shorter than the longest has stopped."""
    stopped = cut > 0 or ids[-1:] == [endings.eos] or (endings.eos is None and len(ids) < endings.longest)
    return "stop" if stopped else "length"


def _grade(row: Row, scale: _Scale) -> Grade:
    """The labels of a row in our terms."""
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
