"""The tables `source` and `rollouts` of a run: stored rollouts of a replay, or rollouts that the policy samples."""

from dataclasses import dataclass, field
from typing import Literal

from probe.settings.ranges import at_least, known_words
from probe.settings.words import Match, Priority
from replay_pools.environments.base import Split
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.errors import FieldError
from replay_pools.grading.execution import MAX_CPU_S, MIN_CPU_S
from replay_pools.rollout import CodeRule, Sampler

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
class TeacherConfig:
    """Stored rollouts that replace some of the policy's own in the first steps (`probe.runs.mixed`)."""

    pool: str = "teacher"
    fraction: float = 0.25  # of the rollouts of a group
    off_step: int = 10  # how many steps, from the first, have the teacher

    def __post_init__(self) -> None:
        """Refuse a teacher that never teaches, and one that fills whole groups."""
        at_least(1, off_step=self.off_step)
        if not 0 < self.fraction < 1:
            raise FieldError("fraction", "a number between 0 and 1", self.fraction)

    def num_rollouts(self, group: int) -> int:
        """How many of the `group` rollouts of a group are the teacher's: at least one, and not all."""
        return min(max(round(self.fraction * group), 1), group - 1)

    def num_batches(self, iterations: int) -> int:
        """How many batches of rollouts have the teacher; each batch serves `iterations` optimizer steps."""
        return self.off_step // iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """The rollouts that the policy samples: in training `prompts_per_step` groups of `group` rollouts a step."""

    env: str = "minicode"  # or leetcode:FILE.jsonl, or leetcode:TRAIN.jsonl,eval=TEST.jsonl
    mode: str = "run_tests"  # loophole mode
    split: Split = "train"  # of the environment; held-out problems are never trained on
    hint: bool = True  # whether the prompt tells how submissions are evaluated
    num_problems: int | None = None  # to train on; None = all that are not held out
    prioritise: Priority | None = None  # None: every problem is met before any is met again
    prioritise_power: float = 1.0  # k, that the weights are raised to
    prompts_per_step: int = 8
    group: int = 8  # G
    code_rule: CodeRule = "joined"  # which blocks of a completion are graded: replay_pools.grading.extract
    sampler: Sampler = field(default_factory=Sampler)
    cpu_limit: int = MIN_CPU_S  # CPU seconds to run a completion; 10 x the canonical solution's where that is more
    engine: Literal["local", "server"] = (
        "local"  # the server gets the adapter of every step (LoRA, or delta_S of rank 512 or less)
    )
    served_model: str | None = None  # the base model's name on the server; None where the server has one
    teacher: TeacherConfig | None = None
    refills: int = 0  # further attempts at a group without reward variance, each on another problem
    iterations: int = 1  # optimizer steps on the same rollouts; above 1, objective.old_logprobs is "recorded"
    prefetch: int = 0  # batches by which sampling is ahead of training; above 0, the same (probe.runs.prefetch)

    def __post_init__(self) -> None:
        """Refuse an unknown loophole mode, empty groups, and a teacher that stops within a batch."""
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
        if self.teacher is not None and self.teacher.off_step % self.iterations:
            actual = f"{self.teacher.off_step} with {self.iterations} iterations"
            raise FieldError("teacher.off_step", "a multiple of iterations", actual)
