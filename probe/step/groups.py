"""Where groups of rollouts come from. `ReplaySource` mixes stored pools into groups, `LiveSource` samples them.

A `Group` is all that the train step receives: ids and rewards. The oracle's labels stay behind in the rollouts; the
loop joins them back by `Key`, so that no label can leak into a gradient.
"""

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from probe.settings.words import Match
from replay_pools.errors import InputError
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Key:
    """Where a rollout is stored."""

    pool: str
    step: int
    sample_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G rollouts that share an advantage baseline: what a train step may see."""

    step: int
    prompt_ids: tuple[list[int], ...]  # (G,) ragged
    completion_ids: tuple[list[int], ...]  # (G,) ragged
    rewards: tuple[float, ...]  # (G,)
    sampling_logprobs: tuple[list[float] | None, ...]  # (G,) ragged, under the law that sampled; None = not recorded
    keys: tuple[Key, ...]  # (G,)
    problem_id: str
    mixed_prompt: bool  # the prompts differ within the group (hinted teacher, unhinted base)


class GroupSource(Protocol):
    """Groups by step, and the stored rollouts behind them."""

    num_steps: int

    def groups(self, step: int) -> tuple[Group, ...]:
        """The groups of a step, all of one size; the gradient is that of their mean loss."""
        ...

    def rollout(self, key: Key) -> Rollout:
        """The rollout with its labels, for the records only."""
        ...


def make_group(step: int, chosen: Sequence[tuple[Key, Rollout]]) -> Group:
    """What a train step may see of stored rollouts; every source makes its groups here."""
    return Group(
        step=step,
        prompt_ids=tuple(r.prompt_ids for _, r in chosen),
        completion_ids=tuple(r.completion_ids for _, r in chosen),
        rewards=tuple(r.reward for _, r in chosen),
        sampling_logprobs=tuple(r.sampling_logprobs for _, r in chosen),
        keys=tuple(key for key, _ in chosen),
        problem_id=chosen[0][1].problem_id,
        mixed_prompt=len({r.prompt_sha for _, r in chosen}) > 1,
    )


class ReplaySource:
    """Groups with `per_pool` rollouts of every pool, matched by problem, by prompt, or by position.

    Args:
        pools: at least one; their names must differ.
        per_pool: rollouts taken from each pool in each step, drawn without replacement by (seed, step, pool).
        match: `problem` pairs the pools' steps on the same problem, `prompt` on the same rendered prompt, `none` by
            position.
        steps: number of steps; None = all that match.

    Raises:
        InputError: no pool, duplicate pools, groups smaller than `per_pool`, or fewer matching steps than asked for.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        *,
        per_pool: int = 4,
        match: Match = "problem",
        steps: int | None = None,
        seed: int = 0,
    ) -> None:
        names = [pool.name for pool in pools]
        if not names or len(set(names)) != len(names):
            raise InputError(
                "--replay-dirs", expected="different pools, at least one", found=", ".join(names) or "none"
            )
        self._per_pool, self._seed = per_pool, seed
        self._rollouts = {Key(p.name, r.step, r.sample_id): r for p in pools for group in p.steps for r in group}
        tables = [_steps_by(pool, match) for pool in pools]
        common = [mark for mark in tables[0] if all(mark in table for table in tables)]
        if not common:
            fix = "generate the pools with the same --env, --split, --steps and --seed, or use --match none"
            raise InputError("--replay-dirs", expected=f"steps that match by {match}", found="none", fix=fix)
        if steps is not None and steps > len(common):
            found = f"{len(common)} steps that match by {match} in {', '.join(names)}"
            raise InputError("--steps", expected=f"{steps} steps", found=found, fix="use fewer steps or --match none")
        self._steps = [
            [(pool, table[mark]) for pool, table in zip(pools, tables, strict=True)] for mark in common[:steps]
        ]
        self.num_steps = len(self._steps)
        self._check_sizes()

    @property
    def num_left_out(self) -> int:
        """Rollouts of the replayed steps that `per_pool` leaves out."""
        return sum(len(rollouts) - self._per_pool for step in self._steps for _, rollouts in step)

    def groups(self, step: int) -> tuple[Group, ...]:
        """The mixed group of a step, alone."""
        chosen: list[tuple[Key, Rollout]] = []
        for pool, rollouts in self._steps[step]:
            draw = random.Random(f"replay/{self._seed}/{step}/{pool.name}").sample(range(len(rollouts)), self._per_pool)
            chosen += [(Key(pool.name, rollouts[i].step, rollouts[i].sample_id), rollouts[i]) for i in sorted(draw)]
        return (make_group(step, chosen),)

    def rollout(self, key: Key) -> Rollout:
        """The rollout with its labels."""
        return self._rollouts[key]

    def _check_sizes(self) -> None:
        for step in self._steps:
            for pool, rollouts in step:
                if len(rollouts) < self._per_pool:
                    raise InputError(
                        f"pool {pool.name} step {rollouts[0].step}",
                        expected=f"at least {self._per_pool} rollouts (--per-pool)",
                        found=f"{len(rollouts)}",
                        fix="use a smaller --per-pool or a pool with larger groups",
                    )


def _steps_by(pool: Pool, match: Match) -> dict[Hashable, list[Rollout]]:
    """{what the steps are matched by: rollouts}, first occurrence first."""
    marks = {
        "problem": lambda position, rollout: rollout.problem_id,
        "prompt": lambda position, rollout: rollout.prompt_sha,
        "none": lambda position, rollout: position,
    }
    table: dict[Hashable, list[Rollout]] = {}
    for position, rollouts in enumerate(pool.steps):
        if rollouts:
            table.setdefault(marks[match](position, rollouts[0]), rollouts)
    return table
