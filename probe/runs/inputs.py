"""Inputs of a run, checked before the weights are loaded, and their assembly to what its steps need.

    inputs = ReplayInputs(config, out_dir, say, world)      or TrainingInputs; refuses what needs no weights
    inputs.preview(directory)                               what the run would do, for `--dry-run`
    done = inputs.begin(directory)                          loads the policy, and writes `config.json`
    setup = assemble(inputs, directory, num_steps)          frames, directions, measures, references, training state
    run_steps(inputs, directory, source, setup, ...)        `probe.runs.loop`

`record` is what `config.json` holds of them, so that a run with other inputs is another run.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import extraction.adapters.delta_s  # noqa: F401 (teaches peft the adapters of `probe train`)
from extraction.adapters.frames import Frames
from extraction.adapters.trained import Trained
from extraction.directions import Directions
from extraction.library import config_sha
from extraction.pairs import selected_pairs
from extraction.settings import Basis
from probe.objective.credit import planning_tokens
from probe.records.records import StepRecord
from probe.records.run import MANIFEST_FILE
from probe.records.timings import GIB, Timings, mean_times, runs_alike
from probe.runs.arm_directions import arm_measures, directions_source, refreshed_measures
from probe.runs.control import TrainingState
from probe.runs.gram_recorder import GramRecorder
from probe.runs.join import Pieces
from probe.runs.loop import Setup
from probe.runs.policies import adapted_weights, configured_adapter, configured_frames, configured_policy
from probe.runs.resume import find_run, open_run
from probe.settings.arms import get_arm
from probe.settings.training import ModelConfig
from probe.settings.verbs import ReplayConfig, StepConfig, normaliser
from probe.step.bases import Bases
from probe.step.distributed import SOLO, World, shard_base
from probe.step.reference import References
from probe.step.update import Updater
from replay_pools.policy.adapters import adapter_sha
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool

Config = TypeVar("Config", bound=StepConfig)


class Inputs(ABC, Generic[Config]):
    """What a run reads, and with whom it runs.

    Attributes:
        config: the settings, with the defaults that depend on the inputs.
        out_dir: root of what is written; pools given by name are looked up in it.
        say: called with a line of progress, and with every caution.

    Raises:
        InputError: no such monitor or pool.
    """

    pools: Sequence[Pool] = ()  # that the run reads

    def __init__(
        self, config: Config, out_dir: Path, say: Callable[[str], None] = lambda text: None, world: World = SOLO
    ) -> None:
        if config.remedy is not None:
            from probe.runs.monitors import check_monitor

            check_monitor(config.remedy, out_dir)
        self.config, self.out_dir, self.say, self.world = config, out_dir, say, world
        self.cache, self.timings = out_dir / "cache", Timings()

    @property
    def model(self) -> ModelConfig:
        """The table `model`, with a name."""
        return self.config.model

    @cached_property
    def policy(self) -> Policy:
        """The policy with its adapter, loaded on first use."""
        with self.timings.phase("load"):
            policy = configured_policy(self.model, self.cache, device=self.world.loads_on(self.config.model.device))
            self.check(policy)
        return policy

    def check(self, policy: Policy) -> None:
        """Refuse a policy that the inputs do not fit."""

    def record(self) -> dict[str, Any]:
        """Return the part of `config.json` that needs neither weights nor the number of ranks."""
        start = configured_adapter(self.model)
        return {
            "settings": asdict(self.config),
            "pools": [pool.identity() for pool in self.pools],
            "directions": directions_source(self.config.intervention),
            "adapter_sha256": None if start is None else adapter_sha(*start),
        }

    @abstractmethod
    def work(self) -> dict[str, int]:
        """Return {unit: number} of what the run does, `steps` first; InputError for what is refused without weights."""

    def preview(self, directory: Path) -> dict[str, Any]:
        """Describe the run before it runs, without weights.

        Returns:
            path, state (new, continues after N steps, complete), work, hours of the steps that are left with a start,
            peak_gib of memory (on the GPU where one was used), measured (where the two come from; they are None if no
            run like it has timed a step), model and adapted.
        """
        work = self.work()
        done = find_run(directory, self.record(), whole=False)
        num_done = len({row.step for row in done or ()})
        timed = [directory] if num_done else runs_alike(self.config, self.out_dir)
        times, hours, peak = mean_times(timed), None, None
        state = "new" if done is None else f"continues after {num_done} steps"
        measured = "no run here has such steps; first run the same command with --steps 2 and another --name"
        if done is not None and (directory / MANIFEST_FILE).exists():
            state, hours, measured = "complete, nothing to do", 0.0, "nothing is left"
        elif times is not None:
            hours = (times["start"] + (work["steps"] - num_done) * times["step"]) / 3600
            peak = times["peak"] and times["peak"] / GIB
            where = ", ".join(path.name for path in timed)
            measured = f"measured in {where}: {times['step']:.3g} s a step, {times['start']:.3g} s before the first"
        adapted = adapted_weights(self.model)
        if not self.config.intervention.v_hack:
            selected_pairs(self.config.intervention.extraction)  # refuses faulty pairs
        document = {"path": str(directory), "state": state, "work": work, "hours": hours, "peak_gib": peak}
        return document | {"measured": measured, "model": self.model.name, "adapted": adapted}

    def begin(self, directory: Path, more: Mapping[str, Any] = MappingProxyType({})) -> list[StepRecord] | None:
        """Begin or continue the run in `directory`, with `more` in its `config.json`; all ranks call this.

        Returns:
            The records of the finished steps; None if the run is complete.

        Raises:
            InputError: wrong weights, or a directory with another run.
        """
        record = self.record() | {
            "model": self.policy.base_model,
            "base_weights_sha256": self.policy.base_weights_sha,
            "model_config_sha256": config_sha(self.policy.model.config),
            **more,
        }
        done = self.world.on_main(lambda: open_run(directory, record))
        if self.world.on_main((directory / MANIFEST_FILE).exists):
            self.say(f"{directory} is complete; nothing to do")
            return None
        return done


def steps_apart(config: StepConfig) -> bool:
    """Return True if ranks split the steps of a run; False if they split the rollouts of each step.

    Steps are independent while weights are frozen. A sharded base needs all ranks in every forward.
    """
    return not config.trains and not config.model.shard_base


def assemble(inputs: Inputs[Any], directory: Path, num_steps: int) -> Setup:
    """Make the frames of the policy, the directions of the arms and, if weights move, the training state.

    A learning rate decays over the run's `num_steps`. InputError for anything wrong with the pairs or directions.
    """
    config, policy, world = inputs.config, inputs.policy, inputs.world
    arms = [get_arm(name) for name in config.intervention.arms]
    conditions = config.objectives()
    frames: dict[Basis, Frames] = {}
    grams: dict[Basis, GramRecorder] = {}
    used: dict[Basis, None] = dict.fromkeys(arm.basis for arm in arms)
    for basis in used:
        with inputs.timings.phase(basis), world.main_first():
            frames[basis] = configured_frames(policy, basis, config.model, inputs.cache)
    if world.shards_base:
        assert world.device is not None
        shard_base(policy.model, world.device)
        frames = {basis: read.to(world.device) for basis, read in frames.items()}
    adapted = next(iter(frames.values())).adapted
    if adapted is not None and adapted.caution:
        inputs.say(adapted.caution)
    # A sharded base needs all ranks in every forward; otherwise the first rank fills the caches that the others read.
    in_turn = nullcontext() if world.shards_base else world.main_first()
    with inputs.timings.phase("directions"), in_turn:
        start, library = arm_measures(config, policy, frames, inputs.cache, inputs.say)
        # In a training, products with the first pair gradients would be stale after the first step.
        for basis in used if isinstance(config, ReplayConfig) else ():
            # Along the directions of the first loss variant. One with another normaliser has others: these products do
            # not reproduce its cosines, and its analysis says so (`Analysis.reproduced`).
            first = library(basis, normaliser(next(iter(conditions.values()))))
            apart = (one for one in start if one.arm.basis == basis and one.arm.directions != "v_hack")
            controls = {one.arm.name: one.vectors for one in apart}
            grams[basis] = GramRecorder(directory, first.pair_gradients, first.v_hack, controls, basis=basis)
    training, trained, refreshed = None, None, None
    if config.trains:
        trained = Trained(policy.model, frames[arms[0].basis])
        control, objective = config.control, conditions[config.primary]
        updater = Updater(trained, arms[0], config.optimizer, num_steps, config.intervention.projection.target)
        training = TrainingState(updater, References(trained, ema_decay=control.ema_decay), objective, control)

        def extract(current: Frames) -> Directions:
            return library(arms[0].basis, normaliser(objective)).at(current).get(arms[0].directions)

        every = config.intervention.refresh_every
        refreshed = refreshed_measures(directory, start[0], extract, updater, every, world)
    pieces = Pieces(policy.tokenizer)
    return Setup(
        bases=Bases(
            model=policy.model,
            frames=frames,
            trained=trained,
            tokens_per_batch=config.intervention.extraction.tokens_per_batch,
            world=SOLO if steps_apart(config) else world,
        ),
        conditions=conditions,
        measures=refreshed or (lambda step: start),
        planning=lambda ids: planning_tokens([pieces(token) for token in ids], config.planning_phrases),
        pad_id=policy.pad_id,
        grams=grams,
        pieces=pieces,
        training=training,
    )


def with_divisor(config: Config, limit: int | None) -> Config:
    """Fill in the divisor of dr_grpo, a limit in tokens, in every loss that lacks it."""
    objective, filled = config.objective, {"max_completion_length": limit}
    conditions = [
        replace(one, changes={**one.changes, **filled}) if one.objective(objective).lacks_divisor else one
        for one in config.conditions
    ]
    if objective.lacks_divisor:
        objective = replace(objective, **filled)
    return replace(config, objective=objective, conditions=tuple(conditions))
