"""The tables `source` and `rollouts` of a run: stored rollouts of a replay, or rollouts that the policy samples."""

from dataclasses import dataclass, field
from typing import Literal

from probe.settings.ranges import at_least, known_words
from probe.settings.words import Match, Pay, Priority
from replay_pools.environments.base import Split
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.errors import FieldError
from replay_pools.rollout import MAX_CPU_S, MIN_CPU_S, CodeRule, Sampler

MAX_POWER = 100  # beyond, all but the problem of the largest weight have none


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """The stored rollouts of a replay: which pools, and how they are mixed into groups, one group a step."""

    replay_dirs: tuple[str, ...] = ("teacher", "base")  # names in OUT/pools, built-in ones, or paths with a slash
    per_pool: int = 4  # rollouts of a pool in a group; a problem gives as many groups as its rollouts fill
    match: Match = "problem"  # what the rollouts of a step have in common

    def __post_init__(self) -> None:
        """Refuse a source without rollouts."""
        at_least(1, per_pool=self.per_pool, replay_dirs=len(self.replay_dirs))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig:
    """The share of a group that rollouts of another source have (`probe.runs.sources.guests`), by step.

        fraction      until off_step        then, over ramp_steps, in a straight line to        end_fraction

    With the defaults of a teacher it is `fraction` in the first `off_step` steps and nothing after them.
    """

    fraction: float = 0.25  # of the rollouts of a group
    off_step: int | None = None  # the share moves from this step on; None: it stays at `fraction`
    end_fraction: float = 0.0  # of a group, after the ramp
    ramp_steps: int = 0  # steps on the way; 0: off_step has end_fraction already

    def __post_init__(self) -> None:
        """Refuse shares that fill whole groups, a source that gives nothing, and a ramp that does not begin."""
        at_least(0, ramp_steps=self.ramp_steps)
        at_least(0 if self.ramp_steps else 1, off_step=self.off_step)
        for name in ("fraction", "end_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise FieldError(name, "a number between 0 and 1", getattr(self, name))
        if self.off_step is None and (self.end_fraction or self.ramp_steps):
            actual = f"end_fraction {self.end_fraction:g} and ramp_steps {self.ramp_steps} with off_step none"
            raise FieldError("off_step", "the step from which the share moves to end_fraction", actual)
        if not self.fraction and not self.end_fraction:
            raise FieldError("fraction", "a number between 0 and 1, or end_fraction above 0", self.fraction)
        if self.off_step is not None and self.fraction == self.end_fraction:
            raise FieldError(
                "end_fraction", "another share than fraction where there is an off_step", self.end_fraction
            )

    def share(self, step: int) -> float:
        """The share of a group in a step."""
        if self.off_step is None or step < self.off_step:
            return self.fraction
        done = 1.0
        if self.ramp_steps:
            done = min(1.0, (step - self.off_step) / self.ramp_steps)
        return (1 - done) * self.fraction + done * self.end_fraction

    def count(self, step: int, group: int) -> int:
        """How many of the `group` rollouts of a group: at least one while the share is above 0."""
        share = self.share(step)
        return max(round(share * group), 1) if share > 0 else 0

    @property
    def settled(self) -> int:
        """The step from which on the share stays as it is."""
        return 0 if self.off_step is None else self.off_step + self.ramp_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig(ShareConfig):
    """Stored rollouts that replace some of the policy's own, by default in the first steps."""

    pool: str = "teacher"
    off_step: int | None = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSelfConfig(ShareConfig):
    """Rollouts of the policy as it was (`probe.runs.past`) in the place of some, by default always."""

    every: int = 10  # the past self is the policy after the newest multiple of so many steps

    def __post_init__(self) -> None:
        """Refuse a past that never comes about."""
        # `super()` without arguments does not know this class, which `slots` makes anew.
        ShareConfig.__post_init__(self)
        at_least(1, every=self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """The rollouts that the policy samples: in training `prompts_per_step` groups of `group` rollouts a step."""

    env: str = "minicode"  # or minicode:FAMILY,FAMILY, leetcode:FILE.jsonl, or leetcode:TRAIN.jsonl,eval=TEST.jsonl
    mode: str = "run_tests"  # loophole mode
    split: Split = "train"  # of the environment; held-out problems are never trained on
    hint: bool = True  # whether the prompt tells how submissions are evaluated
    num_problems: int | None = None  # to train on; None = all that are not held out
    prioritise: Priority | None = None  # None: every problem is met before any is met again
    prioritise_power: float = 1.0  # k, that the weights are raised to
    prompts_per_step: int = 8
    group: int = 8  # G
    code_rule: CodeRule = "joined"  # which blocks of a completion are graded: replay_pools.grading.labels
    sampler: Sampler = field(default_factory=Sampler)
    pay: Pay = "pass"  # what a training pays for: the pass, or the share of the tests that hold
    cpu_limit: int = MIN_CPU_S  # CPU seconds to run a completion; 10 x the canonical solution's where that is more
    engine: Literal["local", "server"] = (
        "local"  # the server gets the adapter of every step (LoRA, or delta_S of rank 512 or less)
    )
    served_model: str | None = None  # the base model's name on the server; None where the server has one
    teacher: TeacherConfig | None = None
    past_self: PastSelfConfig | None = None
    refills: int = 0  # further attempts at a group without reward variance, each on another problem
    iterations: int = 1  # optimizer steps on the same rollouts; above 1, objective.old_logprobs is "recorded"
    prefetch: int = 0  # batches by which sampling is ahead of training; above 0, the same (probe.runs.sources.prefetch)

    def __post_init__(self) -> None:
        """Refuse an unknown loophole mode, empty groups, and a source whose share changes within a batch."""
        known_words("mode", (self.mode,), LOOPHOLES)
        at_least(1, prompts_per_step=self.prompts_per_step, num_problems=self.num_problems)
        at_least(1, iterations=self.iterations)
        if not 0 < self.prioritise_power <= MAX_POWER:
            raise FieldError("prioritise_power", f"a number above 0, up to {MAX_POWER}", self.prioritise_power)
        if self.prioritise is None and self.prioritise_power != 1:
            raise FieldError("prioritise_power", "1 without prioritise: there are no weights", self.prioritise_power)
        at_least(0, refills=self.refills, prefetch=self.prefetch)
        at_least(1, group=self.group)
        if not 1 <= self.cpu_limit <= MAX_CPU_S:
            raise FieldError("cpu_limit", f"from 1 to {MAX_CPU_S}", self.cpu_limit)
        for name, share in (("teacher", self.teacher), ("past_self", self.past_self)):
            if share is not None and share.off_step is not None and share.off_step % self.iterations:
                actual = f"{share.off_step} with {self.iterations} iterations"
                raise FieldError(f"{name}.off_step", "a multiple of iterations", actual)
        if self.past_self is not None:
            self._check_past_self(self.past_self)

    def _check_past_self(self, past: PastSelfConfig) -> None:
        """A past that differs from the policy, sampled here."""
        if past.every % self.iterations or past.every == self.iterations:
            expected = f"a multiple of iterations ({self.iterations}) above it: else the past self is the policy itself"
            raise FieldError("past_self.every", expected, past.every)
        if self.engine == "server":
            raise FieldError("engine", "local with past_self: a server has the policy as it is", self.engine)

    @property
    def is_on_policy(self) -> bool:
        """Whether every rollout of a training is sampled by the very weights of the one step that it is used in."""
        guests = self.teacher is not None or self.past_self is not None
        return not guests and self.iterations == 1 and not self.prefetch and self.engine == "local"

    def counts(self, step: int) -> tuple[int, int]:
        """(rollouts of a teacher, rollouts of the past self) in a group of a step; `RunConfig` refuses whole groups."""
        taught = 0 if self.teacher is None else self.teacher.count(step, self.group)
        past = 0 if self.past_self is None else self.past_self.count(step, self.group)
        return taught, past
