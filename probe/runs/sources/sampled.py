"""The groups of a training, assembled: live, with rollouts of other policies, after the remedy, sampled ahead."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from probe.records.run import EARLIER_DIR, ROLLOUTS_DIR
from probe.runs.monitors import Monitor
from probe.runs.sources.live import LiveSource
from probe.runs.sources.others import teacher
from probe.runs.sources.past import Ahead, PastWeights
from probe.runs.sources.rewards import plain_prompt, remedied, surprising
from probe.runs.sources.served import PushedEngine
from probe.runs.training_inputs import TrainingInputs
from probe.step.groups import GroupSource
from replay_pools.generate import RolloutMaker, derive_seed


@contextmanager
def open_source(
    inputs: TrainingInputs,
    maker: RolloutMaker,
    past: PastWeights | None,
    directory: Path,
    lean: Callable[[], AbstractContextManager[object]],
    monitor: Monitor | None,
) -> Iterator[tuple[GroupSource, Callable[[int], None]]]:
    """Open (the source of the steps' groups, a function that completes the run's pools with their first N batches).

    Args:
        maker: samples and grades.
        past: earlier weights; None if every rollout is of the policy.
        lean: open while the policy samples.
        monitor: of the remedy; None without one.
    """
    config, rollouts, remedy = inputs.config, inputs.config.rollouts, inputs.config.remedy
    instruction = None if remedy is None else remedy.sampling_instruction
    maker = replace(maker, instruction=instruction)
    ahead: list[Ahead] = []  # one, if a server samples ahead

    @contextmanager
    def sampling(batch: int, *, earlier: bool = False) -> Iterator[None]:
        with ExitStack() as stack:
            if past is not None:
                past.keep(batch)
                for thread in ahead:
                    thread.wait(batch)
                stack.enter_context(past.sampling(batch, earlier=earlier))
            stack.enter_context(lean())
            yield

    taught, earlier = [taught for taught, _ in inputs.counts], [earlier for _, earlier in inputs.counts]
    own = [rollouts.group - sum(others) for others in inputs.counts]
    live = LiveSource(directory / ROLLOUTS_DIR, inputs, maker, sizes=own, seed=config.seed, sampling=sampling)
    sources, others = [live], []
    if rollouts.earlier_checkpoint is not None:
        checkpoint = LiveSource(
            directory / EARLIER_DIR,
            inputs,
            replace(maker, group=max(earlier)),
            sizes=earlier,
            # With the policy's noise, similar policies would sample the same completions.
            seed=derive_seed(EARLIER_DIR, config.seed),
            sampling=partial(sampling, earlier=True),
            tally=live.tally,
            origin=f", as it was after the newest multiple of {rollouts.earlier_checkpoint.every} steps",
        )
        sources.append(checkpoint)
        others.append(lambda batch, first: checkpoint.sampled(batch))
    if inputs.teacher is not None:
        prompt = partial(plain_prompt, maker.engine.chat, instruction)
        others.append(teacher(inputs.teacher, taught, seed=config.seed, taught_prompt=prompt))
    live.others = others
    groups: GroupSource = live
    if remedy is not None:
        groups = remedied(groups, remedy, maker.engine.chat, pay=rollouts.pay, monitor=monitor)
    if config.objective.reward == "surprise":
        groups = surprising(groups, live.counts)
    with ExitStack() as stack:
        if past is not None and isinstance(maker.engine, PushedEngine):
            ahead.append(Ahead(live, past, maker.engine, inputs.problems.num_batches))
            stack.enter_context(closing(ahead[0]))

        def finish(batches: int) -> None:
            stack.close()
            for source in sources:
                source.finish(batches)

        yield groups, finish
