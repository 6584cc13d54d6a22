"""What `probe pool show` says about a pool: rates, lengths, reward spread and advantage cells."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from probe.analysis.statistics.intervals import wilson_interval
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout

LABELS: dict[str, Callable[[Rollout], bool]] = {
    "hacked": lambda rollout: rollout.hacked,
    "gt_pass": lambda rollout: rollout.gt_pass,
    "passed": lambda rollout: rollout.grade.passed,
    "exploited": lambda rollout: rollout.grade.exploited,
    "fmt_ok": lambda rollout: rollout.fmt_ok,
}
ZERO = 1e-9  # a centred advantage below this is rounding of the mean


def summarise(pool: Pool) -> dict[str, Any]:
    """The summary as plain JSON values."""
    rollouts = [rollout for group in pool.steps for rollout in group]
    by_mode = {mode: [r for r in rollouts if r.env_mode == mode] for mode in sorted({r.env_mode for r in rollouts})}
    spreads = [max(r.reward for r in group) - min(r.reward for r in group) for group in pool.steps]
    return {
        "name": pool.name,
        "path": str(pool.path),
        "policy": pool.manifest["policy"],
        "tests": pool.manifest.get("tests"),
        "normalised": list(pool.normalised),
        "steps": len(pool.steps),
        "rollouts": len(rollouts),
        "modes": {mode: {"rollouts": len(mine), "rates": rates(mine)} for mode, mine in by_mode.items()},
        "prompt_tokens": spread([r.plen for r in rollouts]),
        "completion_tokens": spread([r.comp_len for r in rollouts]),
        "reward": spread([r.reward for r in rollouts]),
        "reward_spread": spread(spreads),
        "reward_spread_per_step": spreads,
        "frac_reward_zero_std": fmean(s == 0 for s in spreads) if spreads else None,
        "finish_reasons": dict(Counter(r.finish_reason for r in rollouts)),
        "advantage_cells": advantage_cells(pool.steps),
    }


def rates(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Rate and 95% Wilson interval of every label.

    The interval treats rollouts as independent; those of one prompt are not, so it is too narrow for prompts.
    """
    table = {}
    for name, label in LABELS.items():
        count = sum(map(label, rollouts))
        if interval := wilson_interval(count, len(rollouts)):
            rate = count / len(rollouts)
            table[name] = {"count": count, "rate": rate, "low": interval.low, "high": interval.high}
    return table


def advantage_cells(groups: Sequence[Sequence[Rollout]]) -> list[dict[str, Any]]:
    """Rollouts counted by hint x hacked x gt_pass x sign of the centred advantage r - mean(r of the group)."""
    cells: Counter[tuple[bool, bool, bool, str]] = Counter()
    for group in groups:
        mean = fmean(rollout.reward for rollout in group)
        for r in group:
            advantage = r.reward - mean
            sign = "0" if abs(advantage) < ZERO else "+" if advantage > 0 else "-"
            cells[r.hint, r.hacked, r.gt_pass, sign] += 1
    keys = ("hint", "hacked", "gt_pass", "sign")
    return [{**dict(zip(keys, cell, strict=True)), "rollouts": count} for cell, count in sorted(cells.items())]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median, mean and maximum; empty for no values."""
    if not values:
        return {}
    return {"min": min(values), "median": median(values), "mean": fmean(values), "max": max(values)}
