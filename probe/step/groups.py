"""Groups of rollouts: what a train step receives, and `ReplaySource`, which mixes stored pools into groups.

A `Group` holds token ids, masks and rewards only. The oracle's labels stay in the rollouts, and the loop joins them to
the records by `RolloutKey`. So a label reaches a gradient only through the rewards, which a remedy may change
(`probe.runs.sources.rewards`). `probe.runs.sources.live.LiveSource` samples its groups.

To add a source: a class with the methods of `GroupSource`, which makes its groups with `make_group`. To add a way to
match pools: its word in `Match` of `probe.settings.words`, its row in `ReplaySource._read`. To add a way to split a
group: its word in `Strata`, its row in `STRATA`.
"""

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from probe.settings.words import Match, Strata
from replay_pools.errors import InputError
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout
from replay_pools.terminal import report


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


class GroupSource(Protocol):
    """Groups by step, and the stored rollouts behind them."""

    num_steps: int

    def groups(self, step: int) -> tuple[Group, ...]:
        """The groups of a step, all of one size; the gradient is that of their mean loss."""
        ...

    def rollout(self, key: RolloutKey) -> Rollout:
        """The rollout with its labels, for the records only."""
        ...


def stored_reward(key: RolloutKey, rollout: Rollout) -> float:
    """Return the reward of a rollout as it was graded."""
    return rollout.reward


def make_group(
    step: int,
    chosen: Sequence[tuple[RolloutKey, Rollout]],
    reward: Callable[[RolloutKey, Rollout], float] = stored_reward,
) -> Group:
    """Make a group of stored rollouts, without their labels; every source makes its groups here.

    `reward` gives the reward that the loss sees; nan = none.
    """
    keys, rollouts = zip(*chosen, strict=True)
    return Group(
        step=step,
        prompt_ids=tuple(rollout.prompt_ids for rollout in rollouts),
        completion_ids=tuple(rollout.completion_ids for rollout in rollouts),
        completion_masks=(None,) * len(rollouts),  # a stored rollout is one turn of the policy
        rewards=tuple(reward(key, rollout) for key, rollout in chosen),
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
    rows = []
    for group in groups:
        values = STRATA[by](group)
        order = list(dict.fromkeys(values))
        rows.append([order.index(value) for value in values])
    return rows


@dataclass(frozen=True, slots=True)
class _Stored:
    """A rollout of a pool: the place of its group, its number there, and its reward."""

    place: int
    number: int
    reward: float


class ReplaySource:
    """Groups with `per_pool` rollouts of every pool, matched by problem, by prompt, or by position.

    Every problem (or prompt, or position) gives as many groups as its rollouts fill, so that all of the data are used:
    first one group of each, then the second ones.

    Args:
        pools: at least one; their names must differ.
        per_pool: rollouts of each pool in a group, drawn without replacement by (seed, place in the first pool, pool).
        match: `problem` pairs the pools' steps on the same problem, `prompt` on the same rendered prompt, `none` by
            position.
        steps: number of steps, a group each, those whose rewards differ first; None = all.
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
        self._matches: list[list[tuple[Pool, list[_Stored]]]] = []  # by place, by pool
        for mark in common:
            self._matches.append([(pool, table[mark]) for pool, table in zip(pools, tables, strict=True)])
        # (place, turn) of every group that the rollouts fill: the first of every place, then the second, and so on. A
        # place that fills no group stays in the first turn: it is refused with its name, not passed over.
        fills = [min(len(rollouts) for _, rollouts in match) // per_pool for match in self._matches]
        self._turns: list[tuple[int, int]] = []
        for turn in range(max(1, *fills)):
            self._turns += [(place, turn) for place, fill in enumerate(fills) if turn < max(fill, 1)]
        if steps is not None and steps > len(self._turns):
            actual = f"{len(self._turns)} groups that match by {match} in {', '.join(names)}"
            fix = "use fewer steps, a smaller --per-pool or --match none"
            raise InputError("--steps", expected=f"{steps} steps", found=actual, fix=fix)
        if steps is not None and steps < len(self._turns):
            # Every place before any again; of these, groups without an update fill what is left of the steps.
            ranked = sorted(self._turns, key=lambda turn: (turn[1], not self._has_update(*turn)))
            chosen = {*ranked[:steps]}
            self._turns = [turn for turn in self._turns if turn in chosen]
        self.num_steps = len(self._turns)
        self._check_sizes()

    @property
    def are_first_choice(self) -> bool:
        """Return whether a longer pool would give the same groups: each is the first of its place and has an update."""
        return all(turn == 0 and self._has_update(place, turn) for place, turn in self._turns)

    @property
    def num_left_out(self) -> int:
        """Count the matching rollouts that `steps` or `per_pool` leaves out of every group."""
        total = sum(len(rollouts) for match in self._matches for _, rollouts in match)
        return total - sum(self._per_pool * len(self._matches[place]) for place, _ in self._turns)

    def groups(self, step: int) -> tuple[Group, ...]:
        """Return the one group of a step, with rollouts of every pool."""
        return (make_group(step, self._chosen(*self._turns[step])),)

    def _chosen(self, place: int, turn: int) -> list[tuple[RolloutKey, Rollout]]:
        """Read the rollouts of a group."""
        chosen: list[tuple[RolloutKey, Rollout]] = []
        for pool, stored in self._drawn(place, turn):
            rollout = pool.steps[stored.place][stored.number]
            chosen.append((RolloutKey(pool.name, rollout.step, rollout.sample_id), rollout))
        return chosen

    def _drawn(self, place: int, turn: int) -> Iterator[tuple[Pool, "_Stored"]]:
        """Locate the rollouts of a group."""
        for pool, rollouts in self._matches[place]:
            for i in sorted(self._draw(place, turn, pool, len(rollouts))):
                yield pool, rollouts[i]

    def drawn(self, pool: Pool) -> Pool:
        """Return the pool with only the groups from which rollouts are drawn."""
        places = {stored.place for turn in self._turns for each, stored in self._drawn(*turn) if each is pool}
        return pool.only(sorted(places))

    def _read(self, pool: Pool, match: Match) -> dict[Hashable, list["_Stored"]]:
        """Collect the rollouts of a pool by the mark that matches them; steps with one mark are joined."""
        marks = {
            "problem": lambda place, rollout: rollout.problem_id,
            "prompt": lambda place, rollout: rollout.prompt_sha,
            "none": lambda place, rollout: place,
        }
        table: dict[Hashable, list[_Stored]] = {}
        for place, rollouts in enumerate(pool.steps):
            report(f"groups of pool {pool.name} read", place, len(pool.steps))
            self._places[pool.name, rollouts[0].step] = pool, place
            stored = [_Stored(place, number, rollout.reward) for number, rollout in enumerate(rollouts)]
            table.setdefault(marks[match](place, rollouts[0]), []).extend(stored)
        return table

    def _has_update(self, place: int, turn: int) -> bool:
        """Return whether rewards differ in a group; True for one that is too small, which is refused by its name."""
        if any(len(rollouts) < self._per_pool for _, rollouts in self._matches[place]):
            return True
        return len({stored.reward for _, stored in self._drawn(place, turn)}) > 1

    def _draw(self, place: int, turn: int, pool: Pool, num_rollouts: int) -> list[int]:
        """Draw a pool's rollouts of a group at random, from the rollouts that earlier turns of the place have left."""
        # Seeded by place and pool, and drawn from the first turn on: a resumed run draws the same rollouts.
        random_state = random.Random(f"replay/{self._seed}/{place}/{pool.name}")
        left, drawn = list(range(num_rollouts)), list[int]()
        for _ in range(turn + 1):
            drawn = random_state.sample(left, self._per_pool)
            left = [i for i in left if i not in drawn]
        return drawn

    def rollout(self, key: RolloutKey) -> Rollout:
        """Read the rollout with its labels."""
        pool, place = self._places[key.pool, key.step]
        return pool.steps[place][key.sample_id]

    def _check_sizes(self) -> None:
        for place, _ in self._turns:
            for pool, rollouts in self._matches[place]:
                if len(rollouts) < self._per_pool:
                    raise InputError(
                        f"pool {pool.name} step {pool.steps[rollouts[0].place][0].step}",
                        expected=f"at least {self._per_pool} rollouts with a label (--per-pool)",
                        found=f"{len(rollouts)}",
                        fix="use a smaller --per-pool or a pool with larger groups",
                    )
