"""Groups of rollouts: what a train step receives, and `ReplaySource`, which mixes stored pools into groups.

A `Group` holds token ids, masks and rewards only. The oracle's labels stay in the rollouts, and the loop joins them to
the records by `RolloutKey`. So a label reaches a gradient only through the rewards, which a remedy may change
(`probe.runs.sources.rewards`). `probe.runs.sources.live.LiveSource` samples its groups.

To add a source: a class with the methods of `GroupSource`, which makes its groups with `make_group`. To add a way to
match pools: its word in `Match` of `probe.settings.words`, its row in `ReplaySource._read`. To add a way to split a
group: its word in `Strata`, its row in `STRATA`.
"""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Protocol

from probe.settings.words import Match, Strata
from replay_pools.base.errors import InputError
from replay_pools.base.terminal import report
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """The address of a stored rollout."""

    pool: str
    step: int
    sample_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G rollouts that share an advantage baseline, without their labels."""

    step: int
    prompt_ids: tuple[list[int], ...]  # (G,) ragged
    completion_ids: tuple[list[int], ...]  # (G,) ragged
    completion_masks: tuple[list[bool] | None, ...]  # (G,) ragged, True where the policy sampled the id; None = all
    rewards: tuple[float, ...]  # (G,); nan without a label, or left out: advantage 0, and not in the baseline
    sampling_logprobs: tuple[list[float] | None, ...]  # (G,) ragged, one a completion id; None = not recorded
    keys: tuple[RolloutKey, ...]  # (G,)
    problem_id: str
    mixed_prompt: bool  # the prompts differ within the group (hinted teacher, unhinted base)
    flagged: tuple[bool, ...] | None = None  # (G,) True: the gradient moves the quarantine alone; None: none has one


class GroupSource(Protocol):
    """Groups by step, and the stored rollouts behind them."""

    num_steps: int

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the groups of a step, all of one size; the gradient is taken of their mean loss."""
        ...

    def rollout(self, key: RolloutKey) -> Rollout:
        """Return the rollout with its labels, for the records only."""
        ...


def make_group(
    step: int,
    chosen: Sequence[tuple[RolloutKey, Rollout]],
    reward: Callable[[Rollout], float] = attrgetter("reward"),
) -> Group:
    """Make a group of stored rollouts, without their labels; every source makes its groups here.

    `reward` gives the reward that the loss sees; nan = none.
    """
    keys, rollouts = zip(*chosen, strict=True)
    return Group(
        step=step,
        prompt_ids=tuple(rollout.prompt_ids for rollout in rollouts),
        completion_ids=tuple(rollout.completion_ids for rollout in rollouts),
        completion_masks=tuple(rollout.completion_mask for rollout in rollouts),
        rewards=tuple(map(reward, rollouts)),
        sampling_logprobs=tuple(rollout.sampling_logprobs for rollout in rollouts),
        keys=keys,
        problem_id=rollouts[0].problem_id,
        mixed_prompt=len({rollout.prompt_sha for rollout in rollouts}) > 1,
    )


def _longer(group: Group) -> list[Hashable]:
    completions = zip(group.completion_ids, group.completion_masks, strict=True)
    lengths = [len(ids) if mask is None else sum(mask) for ids, mask in completions]
    return [length > median(lengths) for length in lengths]


# {word: the stratum of each rollout of a group}: advantages would otherwise favour whatever separates the sources
# (prompts, lengths) of a group, so a rollout is compared only with rollouts of its stratum.
STRATA: Mapping[Strata, Callable[[Group], list[Hashable]]] = {
    "source": lambda group: [key.pool for key in group.keys],
    "prompt": lambda group: [tuple(ids) for ids in group.prompt_ids],
    "length": _longer,  # or not, than the median of the group
}


def strata_of(groups: Sequence[Group], by: Strata) -> list[list[int]]:
    """Number the stratum of every rollout from 0 in each group, (P, G)."""
    rows = [STRATA[by](group) for group in groups]
    return [[[*dict.fromkeys(row)].index(value) for value in row] for row in rows]


Stored = tuple[Pool, int, int, float]  # a rollout: its pool, the place of its group, its number there, its reward


class ReplaySource:
    """Groups with `per_pool` rollouts of every pool, matched by problem, by prompt, or by position.

    A problem (or prompt, or position) gives every group that its rollouts fill: first one group of each problem, then
    the second ones.

    Args:
        pools: at least one; their names must differ.
        per_pool: rollouts of each pool in a group, drawn without replacement by (seed, place in the first pool, pool).
        match: `problem` pairs the pools' steps on the same problem, `prompt` on the same rendered prompt, `none` by
            position.
        steps: number of steps, a group each; groups with different rewards come first; None = all.
        seed: of the draws.

    Raises:
        InputError: no pool, duplicate pools, fewer than `per_pool` rollouts of a match, or fewer groups than asked for.
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
        # {(pool, step): the pool, and the place of the step in it}: rollouts are read again when they are drawn.
        self._places: dict[tuple[str, int], tuple[Pool, int]] = {}
        tables = [self._read(pool, match) for pool in pools]
        common = [mark for mark in tables[0] if all(mark in table for table in tables)]
        if not common:
            fix = "generate the pools with the same --env, --split, --steps and --seed, or use --match none"
            raise InputError("--replay-dirs", expected=f"steps that match by {match}", found="none", fix=fix)
        drawn: list[tuple[int, list[Stored]]] = []  # (turn, rollouts): the first group of every place, and so on
        for place, mark in enumerate(common):
            drawn += enumerate(self._draw(place, [table[mark] for table in tables]), start=mark[1])
        drawn.sort(key=lambda group: group[0])
        if steps is not None and steps > len(drawn):
            actual = f"{len(drawn)} groups that match by {match} in {', '.join(names)}"
            fix = "use fewer steps, a smaller --per-pool or --match none"
            raise InputError("--steps", expected=f"{steps} steps", found=actual, fix=fix)
        # Every place comes before any again; groups without an update fill the steps that are left.
        is_flat = [len(group) >= per_pool and len({reward for *_, reward in group}) == 1 for _, group in drawn]
        ranks = [(turn, flat) for (turn, _), flat in zip(drawn, is_flat, strict=True)]
        chosen = sorted(sorted(range(len(drawn)), key=ranks.__getitem__)[:steps])
        self._groups = [drawn[i][1] for i in chosen]
        for (pool, place, *_), *others in self._groups:
            if len(others) + 1 < per_pool:
                raise InputError(
                    f"pool {pool.name} step {pool.steps[place][0].step}",
                    expected=f"at least {per_pool} rollouts (--per-pool)",
                    found=f"{len(others) + 1}",
                    fix="use a smaller --per-pool or a pool with larger groups",
                )
        self.num_steps = len(chosen)
        num_matching = sum(len(table[mark]) for mark in common for table in tables)
        self.num_left_out = num_matching - sum(map(len, self._groups))  # matching rollouts that are in no group

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the one group of a step, with rollouts of every pool."""
        chosen: list[tuple[RolloutKey, Rollout]] = []
        for pool, place, number, _ in self._groups[step]:
            rollout = pool.steps[place][number]
            chosen.append((RolloutKey(pool.name, rollout.step, rollout.sample_id), rollout))
        return (make_group(step, chosen),)

    def rollout(self, key: RolloutKey) -> Rollout:
        """Read the rollout with its labels."""
        pool, place = self._places[key.pool, key.step]
        return pool.steps[place][key.sample_id]

    def drawn(self, pool: Pool) -> Pool:
        """Return the pool with only the groups from which rollouts are drawn."""
        return pool.only(sorted({place for group in self._groups for its_pool, place, *_ in group if its_pool is pool}))

    def _read(self, pool: Pool, match: Match) -> dict[tuple[Hashable, int], list[Stored]]:
        """Collect the rollouts of a pool by the mark that matches them.

        Steps with one mark are joined. The groups of a log stay apart, since weights may have moved between them: the
        mark has a number, how often the log had it before.
        """
        marks = {
            "problem": lambda place, rollout: rollout.problem_id,
            "prompt": lambda place, rollout: rollout.prompt_sha,
            "none": lambda place, rollout: place,
        }
        table: dict[tuple[Hashable, int], list[Stored]] = {}
        times: Counter[Hashable] = Counter()
        for place, rollouts in enumerate(pool.steps):
            report(f"groups of pool {pool.name} read", place + 1, len(pool.steps))
            self._places[pool.name, rollouts[0].step] = pool, place
            stored = [(pool, place, number, rollout.reward) for number, rollout in enumerate(rollouts)]
            mark = marks[match](place, rollouts[0])
            table.setdefault((mark, times[mark]), []).extend(stored)
            times[mark] += "log" in pool.manifest
        return table

    def _draw(self, place: int, stored: Sequence[list[Stored]]) -> list[list[Stored]]:
        """Draw a place's groups, turn by turn; if a pool has too few rollouts, return these, which are refused."""
        for rollouts in stored:
            if len(rollouts) < self._per_pool:
                return [rollouts]
        turns: list[list[Stored]] = [[] for _ in range(min(map(len, stored)) // self._per_pool)]
        for rollouts in stored:
            # Seeded by place and pool: a resumed run draws the same rollouts.
            random_state = random.Random(f"replay/{self._seed}/{place}/{rollouts[0][0].name}")
            left = [*range(len(rollouts))]
            for group in turns:
                drawn = random_state.sample(left, self._per_pool)
                left = [i for i in left if i not in drawn]
                group += [rollouts[i] for i in sorted(drawn)]
        return turns
