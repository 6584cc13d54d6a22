"""Rollout and Grade: one sampled completion and its labels, as stored in a pool.

The token ids are what was sampled; the text is decoded from them and never tokenised again. The labels (`gt_pass`,
`hacked`, `grade`) are joined to measurements by (pool, step, sample_id) and never reach the train step.

Only the standard library is imported here: grading runs in a plain interpreter, which may read no installed package.
"""

from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

from replay_pools.errors import InputError

POOL_SCHEMA = 1  # in every manifest; readers refuse another one
REWARD_COMPILES = 0.5  # for source that compiles
REWARD_PASSED = 3.0  # for a pass, in addition
REWARD_RANGE = REWARD_COMPILES + REWARD_PASSED  # largest minus smallest reward
MIN_CPU_S = 4  # CPU seconds of an execution; a problem whose canonical solution needs many has a higher limit
MAX_CPU_S = 3600  # that can be asked for: what is waited, a multiple, has to fit into the milliseconds of poll

LOGGED_GRADER = "logged"  # `grade.grader` of rollouts that were read from the log of another tool
UNKNOWN = "unknown"  # text fields that a log does not record
UNSAFE = "unsafe-local"  # `grade.isolation` of submissions that nothing confined

FinishReason = Literal["stop", "length"]
CodeRule = Literal["joined", "last"]  # which blocks of a completion are its code: grading.labels
CODE_RULES: tuple[CodeRule, ...] = get_args(CodeRule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The labels that grading gave one completion; each is stored on its own. None = a log that does not say.

    >>> Grade(fmt_ok=True, compiles=True, passed=True, gt_correct=False, hacked=True, exploited=True,
    ...       mechanism="run_tests", flaky=None, detectors={"vacuous_vs_stub": True}, num_tests=10, num_tests_passed=2,
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
    flaky: bool | None  # graded twice with different labels; None = graded once
    detectors: dict[str, bool | None]  # every detector on its own; None = not applicable
    num_tests: int  # oracle inputs
    num_tests_passed: int  # oracle inputs answered right
    isolation: str  # "A" | "B" | "unsafe-local"
    grader: str  # grader version
    error: str | None  # first error of the submission, one line; None when it ran
    # Why nothing can be said of the submission, whose labels are then all False: they count nowhere, and the reward is
    # none. Also None in the rows of pools from before this field.
    no_label: str | None = None

    @property
    def reward(self) -> float:
        """0.5 for source that compiles plus 3.0 for a pass (the upstream constants)."""
        return REWARD_COMPILES * bool(self.compiles) + REWARD_PASSED * bool(self.passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled completion with its grade: one line of a pool file, as a JSON object of the fields below in order."""

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
    sampling_logprobs: list[float] | None  # nats, of the sampler's law, one a completion token
    reward: float
    hacked: bool | None  # None, as of the next two: a log that does not say
    gt_pass: bool | None
    fmt_ok: bool | None
    env: str
    env_mode: str  # active loophole mode
    hint: bool  # the prompt carries the mode's hint
    prompt_sha: str  # first 16 hex digits of sha256(prompt)
    grade: Grade

    @property
    def labelled(self) -> bool:
        """Whether its labels and its reward say anything; if not, no count, rate or baseline has it."""
        return self.grade.no_label is None

    @classmethod
    def from_json(cls, row: Any, where: object) -> "Rollout":
        """The rollout of one parsed line.

        Raises:
            InputError: not an object, missing or unknown fields (all are named), or ids that are not as many as their
                length says. The error starts with `where`.
        """
        if not isinstance(row, dict):
            raise InputError(where, expected="a JSON object", found=type(row).__name__)
        _check_fields(cls, row, where)
        if not isinstance(row["grade"], dict):
            raise InputError(f"{where} grade", expected="a JSON object", found=type(row["grade"]).__name__)
        _check_fields(Grade, row["grade"], f"{where} grade")
        rollout = cls(**{**row, "grade": Grade(**row["grade"])})
        for ids, length in (("prompt_ids", "plen"), ("completion_ids", "comp_len")):
            if not isinstance(row[ids], list):
                raise InputError(f"{where} {ids}", expected="a list of token ids", found=repr(row[ids]))
            if len(getattr(rollout, ids)) != getattr(rollout, length):
                raise InputError(
                    f"{where} {ids}",
                    expected=f"{length} = {getattr(rollout, length)} ids",
                    found=f"{len(getattr(rollout, ids))} ids",
                )
        return rollout


def _check_fields(kind: type, row: dict[str, Any], where: object) -> None:
    """InputError unless the keys of `row` are the fields of the dataclass `kind`; one with a default may be missing."""
    names = {field.name for field in fields(kind)}
    required = {field.name for field in fields(kind) if field.default is MISSING}
    if missing := sorted(required - row.keys()):
        raise InputError(where, expected=f"field {missing[0]}", found=f"{len(missing)} missing: {', '.join(missing)}")
    if unknown := sorted(row.keys() - names):
        raise InputError(where, expected=f"the fields of {kind.__name__}", found=f"unknown: {', '.join(unknown)}")
