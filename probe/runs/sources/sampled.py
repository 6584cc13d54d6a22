"""The groups of a training, assembled: live, with rollouts of other policies, after the remedy, sampled ahead."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.records.run import EARLIER_DIR, ROLLOUTS_DIR
from probe.runs.control import TrainingState
from probe.runs.monitors import Monitor
from probe.runs.sources.live import LiveSource
from probe.runs.sources.others import MixedSource, OtherPolicy, PastRollouts, Teacher, same_prompt
from probe.runs.sources.past import AheadEngine, Background, EarlierCheckpoint, PrefetchedSource
from probe.runs.sources.problems import Tally
from probe.runs.sources.rewards import PAYS, AppliedRemedy, remedied, surprising
from probe.runs.sources.served import PushedEngine
from probe.runs.training_inputs import TrainingInputs
from probe.step.groups import GroupSource, RolloutKey
from replay_pools.generate import PoolPlan, RolloutMaker, derive_seed, pool_header
from replay_pools.rollout import Rollout

Reward = Callable[[RolloutKey, Rollout], float]  # nan: none
Sampling = Callable[[], AbstractContextManager[object]]  # open while the policy samples


class Sampled:
    """The groups of one training, sampled by one maker.

    Args:
        maker: samples and grades.
        past: the earlier checkpoint that samples some rollouts; None without one.
        sampling: open while the policy samples.
        monitor: of the remedy; None without one.

    Attributes:
        live: the policy's groups, in the run's pool.
        earlier_checkpoint: the earlier checkpoint's groups, in a second pool; None without one.
        groups: the groups for the steps: `live` with rollouts of earlier checkpoint and teacher, after the remedy.
    """

    def __init__(
        self,
        inputs: TrainingInputs,
        maker: RolloutMaker,
        past: EarlierCheckpoint | None,
        directory: Path,
        sampling: Sampling,
        monitor: Monitor | None,
    ) -> None:
        config, rollouts = inputs.config, inputs.config.rollouts
        remedy, taught_prompt, prompted = None, same_prompt, maker
        paid = PAYS[rollouts.pay]
        self._reward: Reward = lambda key, rollout: paid(rollout)
        if config.remedy is not None:
            remedy = AppliedRemedy(config.remedy, chat=maker.engine.chat, pay=rollouts.pay, monitor=monitor)
            self._reward, taught_prompt = remedy.reward, remedy.taught_prompt
            if config.remedy.sampling_instruction is not None:
                prompted = replace(maker, instruction=config.remedy.sampling_instruction)
        self._inputs, self._maker = inputs, prompted
        header = self._header(rollouts.group)
        self.live = self._pool(directory / ROLLOUTS_DIR, header, config.seed, sampling)
        others: list[OtherPolicy] = []
        self.earlier_checkpoint = None
        if past is not None:
            assert rollouts.earlier_checkpoint is not None

            @contextmanager
            def sampling_past() -> Iterator[None]:
                # Restore the weights first, so that the lean forward sees them.
                with past.restored(), sampling():
                    yield

            numbers = [number for _, number in inputs.counts]
            header = self._header(max(numbers))
            steps = f"as it was after the newest multiple of {rollouts.earlier_checkpoint.every} steps"
            header["policy"] = header["policy"] | {"adapter": f"{header['policy']['adapter']}, {steps}"}
            # With the policy's noise, similar policies would sample the same completions.
            seed = derive_seed(EARLIER_DIR, config.seed)
            self.earlier_checkpoint = self._pool(directory / EARLIER_DIR, header, seed, sampling_past, self.live.tally)
            others.append(PastRollouts(self.earlier_checkpoint, numbers, group=rollouts.group))
        if inputs.teacher is not None:
            numbers = [number for number, _ in inputs.counts]
            others.append(Teacher(inputs.teacher, numbers, seed=config.seed, taught_prompt=taught_prompt))
        groups: GroupSource = MixedSource(self.live, others, reward=self._reward) if others else self.live
        if remedy is not None:
            groups = remedied(groups, remedy)
        self.groups = surprising(groups, self.live.counts) if config.objective.reward == "surprise" else groups

    def finish(self, batches: int) -> None:
        """Complete the run's pools with their first `batches`, the ones that a step trained on."""
        self.live.finish(batches)
        if self.earlier_checkpoint is not None:
            self.earlier_checkpoint.finish(batches)

    def _pool(
        self, directory: Path, header: dict[str, Any], seed: int, sampling: Sampling, tally: Tally | None = None
    ) -> LiveSource:
        rollouts = self._inputs.config.rollouts
        return LiveSource(
            directory,
            header=header,
            maker=self._maker,
            problems=self._inputs.problems,
            seed=seed,
            iterations=rollouts.iterations,
            resamples=rollouts.dynamic_sampling,
            reward=self._reward,
            sampling=sampling,
            tally=tally,
            world=self._inputs.world,
        )

    def _header(self, group: int) -> dict[str, Any]:
        """Return the header of a pool with groups of at most `group` rollouts on the run's problems."""
        rollouts, problems, maker = self._inputs.config.rollouts, self._inputs.problems, self._maker
        plan = PoolPlan(
            env=rollouts.env,
            split="train",
            mode=rollouts.mode,
            hint=rollouts.hint,
            steps=problems.num_batches * problems.width,
            group=group,
            seed=self._inputs.config.seed,
            steps_per_batch=rollouts.prompts_per_step,
        )
        return pool_header(maker.engine, plan, maker.sampler, maker.grader, problems.listed)


@contextmanager
def open_source(
    inputs: TrainingInputs,
    maker: RolloutMaker,
    training: TrainingState,
    directory: Path,
    sampling: Sampling,
    monitor: Monitor | None,
) -> Iterator[tuple[GroupSource, Callable[[int], None]]]:
    """Open (the source of the steps' groups, a function that completes the run's pools with their first N batches)."""
    sampled = Sampled(inputs, maker, training.earlier_checkpoint, directory, sampling, monitor)
    past, pushed = training.past, maker.engine
    if past is None:
        yield sampled.groups, sampled.finish
        return
    if not isinstance(pushed, PushedEngine):
        yield PrefetchedSource(sampled.groups, past, None), sampled.finish
        return
    engine = AheadEngine(pushed)
    ahead = Sampled(inputs, replace(maker, engine=engine), None, directory, sampling, None)
    with closing(Background(ahead.groups, engine, pushed, iterations=past.iterations)) as background:

        def finish(batches: int) -> None:
            background.close()
            sampled.finish(batches)

        yield PrefetchedSource(sampled.groups, past, background), finish
