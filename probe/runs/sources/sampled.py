"""The groups of a training, assembled: live, with rollouts of other policies, after the remedy, sampled ahead."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.records.run import EARLIER_DIR, ROLLOUTS_DIR
from probe.runs.monitors import Monitor
from probe.runs.sources.live import LiveSource
from probe.runs.sources.others import Keyed, OtherPolicy, teacher
from probe.runs.sources.past import PastSource, PastWeights
from probe.runs.sources.problems import Tally
from probe.runs.sources.rewards import AppliedRemedy, remedied, surprising
from probe.runs.sources.served import PushedEngine
from probe.runs.training_inputs import TrainingInputs
from probe.step.groups import GroupSource
from replay_pools.generate import PoolPlan, RolloutMaker, derive_seed, pool_header
from replay_pools.rollout import Rollout

Sampling = Callable[[], AbstractContextManager[object]]  # open while the policy samples


def assembled(
    inputs: TrainingInputs,
    maker: RolloutMaker,
    past: PastWeights | None,
    directory: Path,
    sampling: Sampling,
    monitor: Monitor | None,
) -> tuple[GroupSource, Sequence[LiveSource]]:
    """Return the groups for the steps, and the sources that sample them: the policy, and an earlier checkpoint.

    Args:
        maker: samples and grades.
        past: earlier weights; None if every rollout is of the policy.
        sampling: open while the policy samples.
        monitor: of the remedy; None without one.
    """
    config, rollouts = inputs.config, inputs.config.rollouts
    remedy = AppliedRemedy(config.remedy, chat=maker.engine.chat, pay=rollouts.pay, monitor=monitor)
    if remedy.sampling_instruction is not None:
        maker = replace(maker, instruction=remedy.sampling_instruction)

    def pool(name: str, group: int, seed: int, origin: str = "", tally: Tally | None = None) -> LiveSource:
        header = _header(inputs, maker, group)
        header["policy"] = header["policy"] | {"adapter": header["policy"]["adapter"] + origin}
        return LiveSource(
            directory / name,
            header=header,
            maker=maker,
            problems=inputs.problems,
            seed=seed,
            iterations=rollouts.iterations,
            resamples=rollouts.dynamic_sampling,
            reward=remedy.reward,
            sampling=sampling,
            tally=tally,
            world=inputs.world,
        )

    live = pool(ROLLOUTS_DIR, rollouts.group, config.seed)
    sources, others = [live], list[OtherPolicy]()
    taught, earlier = [taught for taught, _ in inputs.counts], [earlier for _, earlier in inputs.counts]
    if rollouts.earlier_checkpoint is not None and past is not None:
        origin = f", as it was after the newest multiple of {rollouts.earlier_checkpoint.every} steps"
        # With the policy's noise, similar policies would sample the same completions.
        seed = derive_seed(EARLIER_DIR, config.seed)
        checkpoint = pool(EARLIER_DIR, max(earlier), seed, origin, live.tally)
        sources.append(checkpoint)

        def drawn(batch: int, of_live: Sequence[Rollout]) -> list[Keyed]:
            with past.sampling_earlier(batch):
                return checkpoint.sampled(batch, fewer=rollouts.group - earlier[batch])

        others.append(OtherPolicy(earlier, drawn))
    if inputs.teacher is not None:
        others.append(teacher(inputs.teacher, taught, seed=config.seed, taught_prompt=remedy.taught_prompt))
    live.others = others
    groups: GroupSource = live if config.remedy is None else remedied(live, remedy)
    return surprising(groups, live.counts) if config.objective.reward == "surprise" else groups, sources


def _header(inputs: TrainingInputs, maker: RolloutMaker, group: int) -> dict[str, Any]:
    """Return the header of a pool with groups of at most `group` rollouts on the run's problems."""
    rollouts, problems = inputs.config.rollouts, inputs.problems
    plan = PoolPlan(
        env=rollouts.env,
        split="train",
        mode=rollouts.mode,
        hint=rollouts.hint,
        steps=problems.num_batches * problems.width,
        group=group,
        seed=inputs.config.seed,
        steps_per_batch=rollouts.prompts_per_step,
    )
    return pool_header(maker.engine, plan, maker.sampler, maker.grader, problems.listed)


@contextmanager
def open_source(
    inputs: TrainingInputs,
    maker: RolloutMaker,
    past: PastWeights | None,
    directory: Path,
    sampling: Sampling,
    monitor: Monitor | None,
) -> Iterator[tuple[GroupSource, Callable[[int], None]]]:
    """Open (the source of the steps' groups, a function that completes the run's pools with their first N batches)."""
    groups, sources = assembled(inputs, maker, past, directory, sampling, monitor)
    with ExitStack() as stack:
        if past is not None:
            pushed, ahead = None, None
            if isinstance(maker.engine, PushedEngine):
                pushed, (ahead, _) = maker.engine, assembled(inputs, maker, past, directory, sampling, None)
            groups = stack.enter_context(closing(PastSource(groups, past, pushed, ahead)))

        def finish(batches: int) -> None:
            stack.close()
            for source in sources:
                source.finish(batches)

        yield groups, finish
