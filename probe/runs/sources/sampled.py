"""The groups of a training, assembled: live, with rollouts of other policies, after the remedy, sampled ahead.

    policy              sampled live (`probe.runs.sources.live`)
    teacher             stored rollouts of a pool, on the same rendered prompt
    earlier checkpoint  rollouts that earlier weights (`probe.runs.sources.past`) sample on the same problem

`RolloutConfig.counts` gives their numbers in a group; the policy samples the rest. All share one baseline. Both others
are off-policy. At ratio 1 (`old_logprobs` "current") a rewarded rollout of a teacher is learnt like a demonstration;
with recorded log-probabilities the ratio to the teacher's distribution would nearly remove it. An earlier checkpoint is
close enough for that ratio, and needs it.

To add a source, add a function to `LiveSource.others`, and its table in `probe.settings.rollouts`.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from probe.records.run import EARLIER_DIR, ROLLOUTS_DIR
from probe.runs.control import TrainingState
from probe.runs.monitors import Monitor
from probe.runs.sources.live import Keyed, LiveSource
from probe.runs.sources.past import sampling_ahead
from probe.runs.sources.rewards import remedied, surprising
from probe.runs.sources.served import PushedEngine
from probe.runs.training_inputs import TrainingInputs
from probe.step.groups import GroupSource, RolloutKey
from replay_pools.base.errors import InputError
from replay_pools.environments.loopholes import instructed
from replay_pools.generate import RolloutMaker, derive_seed
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout, prompt_sha


@contextmanager
def open_source(
    inputs: TrainingInputs, maker: RolloutMaker, training: TrainingState, directory: Path, monitor: Monitor | None
) -> Iterator[tuple[GroupSource, Callable[[int], None]]]:
    """Open (the source of the steps' groups, a function that completes the run's pools with their first N batches)."""
    config, rollouts, remedy, past = inputs.config, inputs.config.rollouts, inputs.config.remedy, training.past
    maker = replace(maker, instruction=None if remedy is None else remedy.sampling_instruction)
    taught, past_self = zip(*inputs.shares, strict=True)
    folded, ahead = training.updater.trained.folded, None
    with ExitStack() as stack:
        if isinstance(maker.engine, PushedEngine):
            folded = nullcontext  # a server has its own weights; a step may use the model here at the same time
            if past is not None:
                sample = lambda batch, engine: live.sampled(batch, engine)  # noqa: E731 (made below)
                ahead = stack.enter_context(sampling_ahead(past, maker.engine, len(inputs.candidates), sample))

        @contextmanager
        def sampling(batch: int, *, earlier: bool = False) -> Iterator[None]:
            if past is not None:
                past.keep(batch)
            if ahead is not None:
                ahead(batch)
            with nullcontext() if past is None else past.sampling(batch, earlier=earlier), folded():
                yield

        own = [rollouts.group - sum(others) for others in inputs.shares]
        live = LiveSource(directory / ROLLOUTS_DIR, inputs, maker, sizes=own, seed=config.seed, sampling=sampling)
        pools, others = [live], []
        if rollouts.earlier_checkpoint is not None:
            checkpoint = LiveSource(
                directory / EARLIER_DIR,
                inputs,
                replace(maker, group=max(past_self)),
                sizes=past_self,
                # With the policy's noise, similar policies would sample the same completions.
                seed=derive_seed(EARLIER_DIR, config.seed),
                sampling=partial(sampling, earlier=True),
                counts=live.counts,
            )
            pools.append(checkpoint)
            others.append(lambda batch, first: checkpoint.sampled(batch))
        if inputs.teacher is not None:
            others.append(teacher(inputs.teacher, taught, maker, seed=config.seed))
        live.others = others
        groups: GroupSource = live
        if remedy is not None:
            groups = remedied(groups, remedy, maker.engine.chat, pay=rollouts.pay, monitor=monitor)
        if config.objective.reward == "surprise":
            on_main = inputs.world.on_main
            groups = surprising(groups, lambda step: on_main(lambda: live.counts(step // rollouts.iterations)))

        def finish(batches: int) -> None:
            stack.close()
            for pool in pools:
                pool.finish(batches)

        yield groups, finish


def teacher(
    pool: Pool, counts: Sequence[int], maker: RolloutMaker, *, seed: int
) -> Callable[[int, Sequence[Rollout]], list[Keyed]]:
    """Make the function for `LiveSource.others` that draws from a stored pool.

    Args:
        pool: its rollouts answer the prompts of the live source, rendered without the instruction of `maker`.
        counts: rollouts in a group, by batch, drawn without replacement by (seed, batch, problem).

    Raises:
        InputError: a prompt of the pool has fewer rollouts than a group needs.
    """
    by_prompt: dict[str, list[Rollout]] = {}
    for rollout in chain(*pool.steps):
        by_prompt.setdefault(rollout.prompt_sha, []).append(rollout)
    for rollouts in by_prompt.values():
        if len(rollouts) < max(counts):
            where = f"pool {pool.name} step {rollouts[0].step}"
            expected = f"at least {max(counts)} rollouts of a prompt"
            raise InputError(where, expected=expected, found=str(len(rollouts)))

    def of_prompt(batch: int, live: Rollout) -> Keyed:
        if not counts[batch]:
            return []
        prompt = live.prompt_sha
        if maker.instruction is not None:
            plain = instructed(live.messages, maker.instruction, is_asked=False)
            prompt = prompt_sha(maker.engine.chat.render(plain)[0])
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
