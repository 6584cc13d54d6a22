"""The tables `source` and `rollouts` of a run: stored rollouts of a replay, or rollouts that the policy samples."""

import re
from dataclasses import field

from pydantic.dataclasses import dataclass

from probe.settings.training import Mode
from probe.settings.words import Match, Pay, Priority
from replay_pools.base.errors import InputError
from replay_pools.base.tables import STRICT, Maybe, setting
from replay_pools.environments.base import NAMES, Split
from replay_pools.grading.blocks import default_rule
from replay_pools.pool import Sampler
from replay_pools.rollout import MAX_CPU_S, MIN_CPU_S, CodeRule


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class SourceConfig:
    """The stored rollouts of a replay: its pools and how they form groups, one group a step."""

    replay_dirs: tuple[str, ...] = setting(
        ("teacher", "base"), "pools: names in OUT/pools, bundled names, or paths with a slash", min_length=1
    )
    per_pool: int = setting(4, "rollouts of each pool in a group; a problem fills one group or more", ge=1)
    only_step: Maybe[str] = setting(None, "steps of the logged training to replay, as `3`, `0,7` or `4-9`; none: all")
    match: Match = setting("problem", "what a step's rollouts share across pools: problem, rendered prompt or nothing")

    def __post_init__(self) -> None:
        """Refuse steps that are no numbers."""
        self.only_steps()

    def only_steps(self) -> list[range] | None:
        """Parse `only_step`; None = all steps.

        >>> SourceConfig(only_step="0,4-6").only_steps()
        [range(0, 1), range(4, 7)]
        """
        if self.only_step is None:
            return None
        parts = [re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part) for part in self.only_step.split(",")]
        steps = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
        if len(steps) < len(parts) or not all(steps):
            raise InputError("only_step", expected="steps and ranges of steps, as 0,4-6", found=repr(self.only_step))
        return steps


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class TeacherConfig:
    """Rollouts of a hacking policy that replace some of the policy's own (`probe.runs.sources.sampled`).

    Their share is `fraction` until `off_step` and then moves linearly, over `ramp_steps`, to `end_fraction`.
    """

    fraction: float = setting(0.25, "share of each group at the start", ge=0, lt=1)
    off_step: Maybe[int] = setting(10, "step at which the share starts to change; none: never", ge=0)
    end_fraction: float = setting(0.0, "share of each group after the ramp", ge=0, lt=1)
    ramp_steps: int = setting(0, "length of the ramp in steps; 0: change at once", ge=0)
    pool: str = setting("teacher", "pool that the rollouts come from")

    def share(self, step: int) -> float:
        """Return the teacher's share of a group in a step."""
        if self.off_step is None or step < self.off_step:
            return self.fraction
        done = min(1.0, (step - self.off_step) / self.ramp_steps) if self.ramp_steps else 1.0
        return (1 - done) * self.fraction + done * self.end_fraction

    @property
    def settled(self) -> int:
        """First step after the ramp."""
        return 0 if self.off_step is None else self.off_step + self.ramp_steps


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EarlierConfig:
    """Rollouts of an earlier checkpoint that replace some of the policy's own (`probe.runs.sources.past`)."""

    fraction: float = setting(0.25, "share of each group", gt=0, lt=1)
    every: int = setting(10, "steps between the checkpoints that sample them; the newest one does", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class RolloutConfig:
    """The rollouts that the policy samples; a training step has `prompts_per_step` groups of `group` rollouts."""

    env: str = setting("minicode", NAMES)
    mode: Mode = setting("run_tests", "loophole mode")
    split: Split = setting("train", "split of the environment's problems; held-out ones are never trained on")
    hint: bool = setting(True, "tell the policy in the prompt how submissions are evaluated")
    num_problems: Maybe[int] = setting(None, "training problems; none: all that are not held out", ge=1)
    prioritise: Maybe[Priority] = setting(
        None, "draw problems by the policy's results on them; none: each problem once before any repeats"
    )
    prompts_per_step: int = setting(8, "groups of a training step", ge=1)
    group: int = setting(8, "rollouts in a group", ge=1)
    code_rule: Maybe[CodeRule] = setting(
        None, "code blocks of a completion that are graded; none: `joined` for LeetCode files, else `solution`"
    )
    sampler: Sampler = field(default_factory=Sampler)
    pay: Pay = setting("pass", "reward in training: for passing, or for the share of tests that hold")
    cpu_limit: int = setting(
        MIN_CPU_S,
        "CPU seconds of an execution, at least 10 times the canonical solution's",
        ge=1,
        le=MAX_CPU_S,
    )
    served_model: Maybe[str] = setting(
        None, "model or adapter to sample, by its name on the server; none: its only base model"
    )
    server_timeout_s: float = setting(600.0, "seconds for an answer of the server, its queue included", gt=0)
    teacher: Maybe[TeacherConfig] = None
    earlier_checkpoint: Maybe[EarlierConfig] = None
    dynamic_sampling: int = setting(
        0, "times that a group without reward variance is sampled again, on another problem; 0: off", ge=0
    )
    iterations: int = setting(1, "optimizer steps on the same rollouts; above 1 needs recorded log-probabilities", ge=1)
    prefetch: int = setting(0, "batches that sampling runs ahead; above 0 needs recorded log-probabilities", ge=0)

    @property
    def grading_rule(self) -> CodeRule:
        """The code rule, or the environment's default."""
        return self.code_rule or default_rule(self.env)

    def counts(self, step: int) -> tuple[int, int]:
        """Return (teacher, earlier checkpoint) rollouts in a group of a step; a share above 0 gives at least one."""
        shares = (
            0.0 if self.teacher is None else self.teacher.share(step),
            0.0 if self.earlier_checkpoint is None else self.earlier_checkpoint.fraction,
        )
        taught, past = (max(round(share * self.group), 1) if share > 0 else 0 for share in shares)
        return taught, past
