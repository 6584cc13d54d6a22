"""Rollouts of other policies in the groups of a `LiveSource` (`probe.runs.sources.live`).

    teacher             stored rollouts of a pool, on the same rendered prompt
    earlier checkpoint  rollouts that earlier weights (`probe.runs.sources.past`) sample on the same problem

`RolloutConfig.counts` gives their numbers in a group; the policy samples the rest. All share one baseline. Both are
off-policy. At ratio 1 (`old_logprobs` "current") a rewarded rollout of a teacher is learnt like a demonstration; with
recorded log-probabilities the ratio to the teacher's distribution would nearly remove it. An earlier checkpoint is
close enough for that ratio, and needs it.

To add a source, add a function to `LiveSource.others`, and its table in `probe.settings.rollouts`.
"""

import random
from collections.abc import Callable, Sequence
from operator import attrgetter

from probe.runs.sources.live import Keyed
from probe.step.groups import RolloutKey
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout


def teacher(
    pool: Pool,
    counts: Sequence[int],
    *,
    seed: int,
    taught_prompt: Callable[[Rollout], str] = attrgetter("prompt_sha"),
) -> Callable[[int, Sequence[Rollout]], list[Keyed]]:
    """Make the function for `LiveSource.others` that draws from a stored pool.

    Args:
        pool: its rollouts answer the same rendered prompts as the live source, in its batches.
        counts: rollouts in a group, by batch, drawn without replacement by (seed, batch, problem).
        seed: seed of the draws.
        taught_prompt: maps a rollout of the policy to the `prompt_sha` of the teacher's prompt; by default the same.

    Raises:
        InputError: a prompt of the pool has fewer rollouts than a group needs.
    """
    by_prompt: dict[str, list[Rollout]] = {}
    for rollout in (rollout for step in pool.steps for rollout in step):
        by_prompt.setdefault(rollout.prompt_sha, []).append(rollout)
    for rollouts in by_prompt.values():
        if len(rollouts) < max(counts):
            where = f"pool {pool.name} step {rollouts[0].step}"
            expected = f"at least {max(counts)} rollouts of a prompt"
            raise InputError(where, expected=expected, found=str(len(rollouts)))

    def of_prompt(batch: int, live: Rollout) -> Keyed:
        if not counts[batch]:
            return []
        prompt = taught_prompt(live)
        if prompt not in by_prompt:
            hint = "with" if live.hint else "no"
            raise InputError(
                f"pool {pool.name}",
                expected="the prompts trained on",
                found=f"none on the prompt of {live.problem_id} ({live.env_mode}, {hint} hint)",
                fix="generate the teacher's pool with the same mode, hint and chat template",
            )
        rollouts = by_prompt[prompt]
        # A new generator for each draw, because a resumed run must draw the same rollouts.
        draw = random.Random(f"teacher/{seed}/{batch}/{live.problem_id}")
        chosen = [rollouts[i] for i in sorted(draw.sample(range(len(rollouts)), counts[batch]))]
        return [(RolloutKey(pool.name, each.step, each.sample_id), each) for each in chosen]

    return lambda batch, live: [of_prompt(batch, rollout) for rollout in live]


def taught_problems(problems: Sequence[Problem], teacher: Pool) -> list[Problem]:
    """Return the `problems` with rollouts in the teacher's pool, in order.

    Raises:
        InputError: there are none.
    """
    known = {rollout.problem_id for step in teacher.steps for rollout in step}
    taught = [problem for problem in problems if problem.problem_id in known]
    if not taught:
        raise InputError(f"pool {teacher.name}", expected="rollouts on problems that are trained on", found="none")
    return taught
