"""The tables `source` and `rollouts` of a run: stored rollouts of a replay, or rollouts that the policy samples."""

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from pydantic.dataclasses import dataclass

from probe.settings.training import Mode
from probe.settings.words import Match, Pay, Priority
from replay_pools.base.errors import FieldError
from replay_pools.base.tables import STRICT, Maybe, setting
from replay_pools.engines import Sampler
from replay_pools.environments.base import NAMES, Split
from replay_pools.grading.blocks import default_rule
from replay_pools.rollout import MAX_CPU_S, MIN_CPU_S, CodeRule


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class SourceConfig:
    """The stored rollouts of a replay: which pools, and how they are mixed into groups, one group a step."""

    replay_dirs: tuple[str, ...] = setting(
        ("teacher", "base"), "pools: names in OUT/pools, built-in ones, or paths with a slash", min_length=1
    )
    per_pool: int = setting(4, "rollouts of a pool in a group; a problem gives as many groups as they fill", ge=1)
    only_step: Maybe[str] = setting(
        None, "the steps of the logged training whose rollouts are replayed, as `3`, `0,7` or `4-9`; none: all"
    )
    match: Match = setting("problem", "what the pools have in common in a step: problem, rendered prompt, nothing")

    def __post_init__(self) -> None:
        """Refuse steps that are no numbers."""
        self.only_steps()

    def only_steps(self) -> list[range] | None:
        """The steps of `only_step`; None where all are replayed.

        >>> SourceConfig(only_step="0,4-6").only_steps()
        [range(0, 1), range(4, 7)]
        """
        if self.only_step is None:
            return None
        parts = [re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part) for part in self.only_step.split(",")]
        steps = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
        if len(steps) < len(parts) or not all(steps):
            raise FieldError("only_step", "numbers and spans of steps, as 0,4-6", repr(self.only_step))
        return steps


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class TeacherConfig:
    """Stored rollouts in the place of some of the policy's own (`probe.runs.sources.guests`), by step.

    fraction      until off_step        then, over ramp_steps, in a straight line to        end_fraction
    """

    fraction: float = setting(0.25, "of the rollouts of a group", ge=0, lt=1)
    off_step: Maybe[int] = setting(10, "the share moves from this step on; none: it stays", ge=0)
    end_fraction: float = setting(0.0, "share after the ramp", ge=0, lt=1)
    ramp_steps: int = setting(0, "steps in which the share moves; 0: at once", ge=0)
    pool: str = setting("teacher", "the pool")

    def share(self, step: int) -> float:
        """The share of a group in a step."""
        if self.off_step is None or step < self.off_step:
            return self.fraction
        done = min(1.0, (step - self.off_step) / self.ramp_steps) if self.ramp_steps else 1.0
        return (1 - done) * self.fraction + done * self.end_fraction

    @property
    def settled(self) -> int:
        """The step from which on the share stays as it is."""
        return 0 if self.off_step is None else self.off_step + self.ramp_steps


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class PastSelfConfig:
    """Rollouts of the policy as it was (`probe.runs.sources.past`) in the place of some."""

    fraction: float = setting(0.25, "of the rollouts of a group", ge=0, lt=1)
    every: int = setting(10, "the past self is the policy after the newest multiple of so many steps", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class RolloutConfig:
    """The rollouts that the policy samples: in training `prompts_per_step` groups of `group` rollouts a step."""

    env: str = setting("minicode", NAMES)
    mode: Mode = setting("run_tests", "loophole mode")
    split: Split = setting("train", "which problems of the environment; held-out ones are never trained on")
    hint: bool = setting(True, "the prompt tells how submissions are evaluated")
    num_problems: Maybe[int] = setting(None, "to train on; none: all that are not held out", ge=1)
    prioritise: Maybe[Priority] = setting(
        None, "draw problems by how the policy does on them; none: every problem before any again"
    )
    prioritise_power: float = setting(1.0, "power that their weights are raised to", gt=0, le=100)
    prompts_per_step: int = setting(8, "groups of a training step", ge=1)
    group: int = setting(8, "rollouts in a group", ge=1)
    code_rule: Maybe[CodeRule] = setting(
        None, "which blocks of a completion are graded; none: joined for LeetCode files, else solution"
    )
    sampler: Sampler = field(default_factory=Sampler)
    pay: Pay = setting("pass", "what a training pays for: the pass, or the share of the tests that hold")
    cpu_limit: int = setting(
        MIN_CPU_S, "CPU seconds of an execution, or 10 times the canonical solution's", ge=1, le=MAX_CPU_S
    )
    engine: Literal["local", "server"] = setting("local", "what samples; a server gets the adapter of every step")
    served_model: Maybe[str] = setting(
        None, "model or adapter to sample, by its name on the server; none: its only base model"
    )
    server_timeout_s: float = setting(600.0, "seconds for an answer of the server, its queue included", gt=0)
    teacher: Maybe[TeacherConfig] = None
    past_self: Maybe[PastSelfConfig] = None
    refills: int = setting(0, "further attempts at a group without reward variance, each on another problem", ge=0)
    iterations: int = setting(1, "optimizer steps on the same rollouts; above 1 needs recorded log-probabilities", ge=1)
    prefetch: int = setting(0, "batches by which sampling runs ahead; above 0 needs recorded log-probabilities", ge=0)

    @property
    def grading_rule(self) -> CodeRule:
        """The code rule, by default the one of the environment."""
        return self.code_rule or default_rule(self.env)

    def faults(self, steps: int) -> Iterator[FieldError]:
        """What a training of so many steps cannot sample."""
        if self.group < 2:
            yield FieldError("group", "at least 2: a baseline is the mean of a group", self.group)
        if self.split != "train":
            yield FieldError("split", "train in a training", self.split)
        if steps % self.iterations:
            yield FieldError("iterations", f"a divisor of the {steps} steps", self.iterations)
        if self.past_self is not None and self.past_self.every % self.iterations:
            yield FieldError("past_self.every", "a multiple of iterations", self.past_self.every)
        if self.past_self is not None and self.engine == "server":
            yield FieldError("engine", "local with past_self: a server has the policy as it is", self.engine)
        # While the share of a teacher moves, too.
        settled = 0 if self.teacher is None else self.teacher.settled
        for step in range(0, min(steps, settled + self.iterations), self.iterations):
            if sum(self.counts(step)) >= self.group:
                expected = "a rollout of the policy itself beside those of teacher and past_self"
                yield FieldError("group", expected, f"{sum(self.counts(step))} of {self.group} in step {step}")
                return

    def counts(self, step: int) -> tuple[int, int]:
        """(rollouts of a teacher, rollouts of the past self) in a group of a step: one at least of a share above 0."""
        shares = (
            0.0 if self.teacher is None else self.teacher.share(step),
            0.0 if self.past_self is None else self.past_self.fraction,
        )
        taught, past = (max(round(share * self.group), 1) if share > 0 else 0 for share in shares)
        return taught, past
