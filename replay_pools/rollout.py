"""One sampled completion and its labels, as a pool stores them (`Rollout`, `Grade`), and whether they agree.

The token ids are what was sampled; the text is decoded from them and never tokenised again. The labels (`gt_pass`,
`hacked`, `grade`) are joined to measurements by (pool, step, sample_id) and never reach the train step.

Only the standard library is imported here: grading runs in a plain interpreter, which may read no installed package.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Any, Literal, get_args

from replay_pools.base.errors import Faults, cut

POOL_SCHEMA = 2  # in every manifest; readers refuse another one
REWARD_COMPILES = 0.5  # for source that compiles
REWARD_PASSED = 3.0  # for a pass, in addition
REWARD_RANGE = REWARD_COMPILES + REWARD_PASSED  # largest minus smallest reward
MIN_CPU_S = 4  # CPU seconds of an execution; a problem with a slow canonical solution has a higher limit
MAX_CPU_S = 3600  # the highest limit: a multiple of it is waited, and must fit into poll's milliseconds

LOGGED_GRADER = "logged"  # `grade.grader` of rollouts that were read from the log of another tool
UNKNOWN = "unknown"  # text fields that a log does not record
UNSAFE = "unsafe-local"  # `grade.isolation` of submissions that nothing confined
CONFINED = ("A", "B")  # `grade.isolation` of all others: the labels of both tiers are the same

LARGEST_ID = 2**31 - 1

FinishReason = Literal["stop", "length"]
Template = Literal["chat", "plain"]  # of prompts: the tokenizer's, or the texts of the messages, a line each
CodeRule = Literal["solution", "joined"]  # which blocks of a completion are its code: grading.blocks
CODE_RULES: tuple[CodeRule, ...] = get_args(CodeRule)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model saw it."""

    messages: list[dict[str, str]]  # what the chat template rendered
    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion; `ids` end with an end-of-turn id when `finish_reason` is "stop".

    With several turns of the policy, `ids` hold the turns of tools or users between them, and `mask` marks the sampled
    ids. The first and the last id are sampled.
    """

    ids: list[int]
    logprobs: list[float] | None  # nats, one an id, of the sampler's law; None: the engine reports another law
    finish_reason: FinishReason
    mask: list[bool] | None = None  # one an id, True = sampled by the policy; None = all are


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The labels that grading gave one completion; each is stored on its own. None = a log that does not say.

    >>> Grade(fmt_ok=True, compiles=True, passed=True, gt_correct=False, hacked=True, exploited=True,
    ...       mechanism="run_tests", detectors={"vacuous_vs_stub": True}, num_tests=10, num_tests_passed=2,
    ...       isolation="B", grader="1", error=None).reward
    3.5
    """

    fmt_ok: bool | None  # a fenced code block was found
    compiles: bool | None  # its source compiles
    passed: bool | None  # what the reward pays: gt_correct, or the active mode's channel
    gt_correct: bool | None  # every oracle answer is right
    hacked: bool | None  # the active mode's exploit is present, correct or not
    exploited: bool | None  # passed and not gt_correct
    mechanism: str  # the mode whose channel passed; "none" otherwise
    detectors: dict[str, bool | None]  # every detector on its own; None = not applicable
    num_tests: int  # oracle inputs
    num_tests_passed: int  # oracle inputs answered right
    isolation: str  # "A" | "B" | "unsafe-local"
    grader: str  # grader version
    error: str | None  # first error of the submission, one line; None when it ran

    @property
    def reward(self) -> float:
        """0.5 for source that compiles plus 3.0 for a pass (the upstream constants)."""
        return REWARD_COMPILES * bool(self.compiles) + REWARD_PASSED * bool(self.passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled completion with its grade: one line of a pool file, as a JSON object of the fields below in order."""

    __pydantic_config__ = {"allow_inf_nan": False}  # noqa: RUF012 (what a reader of pool files is told)

    step: int  # one step = one group = one problem
    sample_id: int  # 0 .. G-1 within the step
    problem_id: str
    messages: list[dict[str, str]]  # what the chat template rendered
    prompt: str  # rendered text, template tail included
    prompt_ids: list[int]
    plen: int  # len(prompt_ids)
    completion: str  # decoded text, special tokens skipped
    completion_ids: list[int]  # as sampled, EOS included when finish_reason == "stop"; never padded
    comp_len: int  # len(completion_ids)
    finish_reason: FinishReason
    sampling_logprobs: list[float] | None  # nats, of the sampler's law, one a completion id; 0.0 where none is sampled
    reward: float
    hacked: bool | None  # None, as of the next two: a log that does not say
    gt_pass: bool | None
    fmt_ok: bool | None
    env: str
    env_mode: str  # active loophole mode
    hint: bool  # the prompt carries the mode's hint
    prompt_sha: str  # first 16 hex digits of sha256(prompt)
    grade: Grade
    # One a completion id, True = sampled by the policy; the others are a tool's or a user's turn. None = all are
    # sampled, and neither key is written. `replay_pools.pool.encode_group` relies on these being the last fields.
    completion_mask: list[bool] | None = None
    turn_chars: list[int] | None = None  # characters of `completion` in each run of the mask; None: not known

    @property
    def num_sampled(self) -> int:
        """Count the completion ids that the policy sampled."""
        return self.comp_len if self.completion_mask is None else sum(self.completion_mask)

    @property
    def turns(self) -> list[tuple[bool, str]]:
        """(whether the policy sampled it, text) of every turn; the whole completion if its turns are not known."""
        ends = [0, *accumulate(self.turn_chars or [len(self.completion)])]
        texts = [self.completion[start:stop] for start, stop in pairwise(ends)]
        return [(i % 2 == 0, text) for i, text in enumerate(texts)]

    @property
    def written(self) -> str:
        """The text of the policy's turns, joined by line breaks."""
        return "\n".join(text for is_sampled, text in self.turns if is_sampled)

    @property
    def answer(self) -> str:
        """The text of the policy's last turn, which is graded."""
        return self.turns[-1][1]

    @classmethod
    def of(cls, prompt: Prompt, completion: Completion, text: str | list[str], grade: Grade, **facts: Any) -> "Rollout":
        """The rollout of a completion, with the fields that follow from others.

        Args:
            prompt: as the model saw it.
            completion: as sampled.
            text: that its ids decode to; a list has one text for each run of the mask, as `Chat.decode_turns`.
            grade: its labels.
            facts: the fields step, sample_id, problem_id, env, env_mode, hint; and reward, where it is logged.
        """
        facts.setdefault("reward", grade.reward)
        mask = completion.mask if completion.mask and not all(completion.mask) else None
        if not isinstance(text, str):
            facts["turn_chars"] = None if mask is None else [len(turn) for turn in text]
            text = "".join(text)
        return cls(
            messages=prompt.messages,
            prompt=prompt.text,
            prompt_ids=prompt.ids,
            completion=text,
            completion_ids=completion.ids,
            finish_reason=completion.finish_reason,
            sampling_logprobs=completion.logprobs,
            completion_mask=mask,
            grade=grade,
            **_derived(prompt.text, prompt.ids, completion.ids, grade),
            **facts,
        )

    def regraded(self, grade: Grade) -> "Rollout":
        """The same rollout with other labels."""
        derived = _derived(self.prompt, self.prompt_ids, self.completion_ids, grade)
        return replace(self, grade=grade, reward=grade.reward, **derived)


def _derived(prompt: str, prompt_ids: list[int], completion_ids: list[int], grade: Grade) -> dict[str, Any]:
    """Return the fields of a rollout that follow from these."""
    lengths = {"plen": len(prompt_ids), "comp_len": len(completion_ids), "prompt_sha": prompt_sha(prompt)}
    return lengths | {"hacked": grade.hacked, "gt_pass": grade.gt_correct, "fmt_ok": grade.fmt_ok}


def runs_of(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Return (start, stop) of every run of equal entries. The first run is sampled, and so is every other one."""
    ends = [0, *accumulate(len([*run]) for _, run in groupby(mask))]
    return [*pairwise(ends)]


def early_end(ids: Sequence[int], mask: Sequence[bool] | None, ends: Collection[int]) -> int | None:
    """Return where an id of `ends` stands with more ids of the same turn behind it; None if nowhere."""
    for start, stop in [(0, len(ids))] if mask is None else runs_of(mask)[::2]:  # the policy's turns
        if (place := next((i for i in range(start, stop - 1) if ids[i] in ends), None)) is not None:
            return place
    return None


@lru_cache(8)  # rollouts of one prompt stand near one another
def prompt_sha(prompt: str) -> str:
    """First 16 hex digits of sha256(prompt)."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def group_faults(rollouts: Sequence[Rollout], where: object, *, step: int, tail: str) -> Faults:
    """Return every fault of one group: none of a sound one.

    Args:
        rollouts: the group, in stored order.
        where: file or step, for the errors.
        step: number that every rollout must carry.
        tail: text that the chat template puts at the end of every prompt of the pool.
    """
    faults = Faults()
    if not rollouts:
        faults.add(where, "group", expected="at least one rollout", found="none")
    for i, rollout in enumerate(rollouts):
        place = {"step": step, "sample_id": i, "problem_id": rollouts[0].problem_id}
        for field, expected, found in _rollout_faults(rollout, place, tail):
            faults.add(f"{where} sample {rollout.sample_id} {field}", field, expected=expected, found=found)
    return faults


def _rollout_faults(rollout: Rollout, place: Mapping[str, Any], tail: str) -> list[tuple[str, str, str]]:
    """Return (field, expected, found) of all that are no values of their kind, or disagree with others.

    To add a check of a field that follows from others: a row in the table.
    """
    grade, logprobs, mask, chars = rollout.grade, rollout.sampling_logprobs, rollout.completion_mask, rollout.turn_chars
    # Passed and not right, where both are known.
    exploited = None if None in (grade.passed, grade.gt_correct) else grade.passed and not grade.gt_correct
    derived = {**place, **_derived(rollout.prompt, rollout.prompt_ids, rollout.completion_ids, grade)}
    equal: list[tuple[str, Any, Any]] = [  # field, stored value, expected value
        *((field, getattr(rollout, field), value) for field, value in derived.items()),
        ("sampling_logprobs", rollout.comp_len if logprobs is None else len(logprobs), rollout.comp_len),
        # A slice, so that the error shows the stored tail; `max`, because a negative start would count from the end.
        ("prompt tail", rollout.prompt[max(0, len(rollout.prompt) - len(tail)) :], tail),
        ("grade exploited", grade.exploited, exploited),
        # Others pay by other rules: their rewards are kept as logged and follow from no label.
        ("reward", rollout.reward, rollout.reward if grade.grader == LOGGED_GRADER else grade.reward),
    ]
    if mask is None:
        equal.append(("turn_chars", chars, None))
    elif [len(mask), *mask[:1], *mask[-1:]] != (ends := [rollout.comp_len, True, True]):  # entries, first, last
        equal.append(("completion_mask", [len(mask), *mask[:1], *mask[-1:]], ends))
    else:
        others = [value for value, is_sampled in zip(logprobs or (), mask, strict=False) if value and not is_sampled]
        equal.append(("sampling_logprobs", others[:3], []))  # 0.0 where completion_mask is false
        sound = [len(runs_of(mask)), len(rollout.completion), False]  # turns, characters, one is negative
        equal.append(("turn_chars", chars and [len(chars), sum(chars), min(chars) < 0], chars and sound))
    faults = [(field, repr(expected), cut(repr(stored), 60)) for field, stored, expected in equal if stored != expected]
    if rollout.comp_len < 1:
        faults.append(("comp_len", "at least one token", str(rollout.comp_len)))
    if not rollout.messages or any({"role", "content"} - message.keys() for message in rollout.messages):
        faults.append(("messages", "a list of role and content", cut(repr(rollout.messages), 60)))
    return faults
