"""What the stored rollouts of a replay hold, before it is run: its prompts, rewards and texts. No torch."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from probe.experiments.spec.types import ResolvedCondition
from probe.settings.run import ReplayConfig
from probe.settings.words import Match
from probe.step.groups import ReplaySource
from replay_pools.errors import InputError
from replay_pools.pool import MANIFEST_NAME, open_pool, resolve_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The groups that a replay with the seed of the settings would make."""

    num_prompts: int  # different problems
    rewards: tuple[tuple[float, ...], ...]  # of every group, nan where unknown
    completions: frozenset[str]


def stored(condition: ResolvedCondition, out_dir: Path) -> Stored | None:
    """The groups of a condition; None where it samples its rollouts, or its pools are not there yet.

    Raises:
        InputError: pools that cannot be read, or that give no groups.
    """
    config = condition.config
    if not isinstance(config, ReplayConfig):
        return None
    source = config.source
    paths = []
    for name in source.replay_dirs:
        try:
            path = resolve_pool(name, out_dir)
        except InputError:
            return None
        # Logs that have not been imported have no manifest.
        if not (path / MANIFEST_NAME).is_file():
            return None
        paths.append(path)
    return _read(tuple(paths), source.per_pool, source.match, config.steps, config.seed)


def stored_if_readable(condition: ResolvedCondition, out_dir: Path) -> Stored | None:
    """As `stored`, and None of pools that cannot be read: `checks.input_faults` says what is wrong with them."""
    try:
        return stored(condition, out_dir)
    except InputError:
        return None


@lru_cache(maxsize=16)  # conditions and checks share pools
def _read(paths: tuple[Path, ...], per_pool: int, match: Match, steps: int | None, seed: int) -> Stored:
    pools = [open_pool(path) for path in paths]
    source = ReplaySource(pools, per_pool=per_pool, match=match, steps=steps, seed=seed)
    groups = [group for step in range(source.num_steps) for group in source.groups(step)]
    completions = set()
    for group in groups:
        completions |= {source.rollout(key).completion for key in group.keys}
    return Stored(
        num_prompts=len({group.problem_id for group in groups}),
        rewards=tuple(group.rewards for group in groups),
        completions=frozenset(completions),
    )
