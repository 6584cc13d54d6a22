"""`probe replay`, assembled: pools -> policy -> coordinates -> directions -> steps -> a run directory.

Everything that shapes the numbers is resolved first and written to `config.json`; `replay(config)` from that file
repeats the run.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from torch import Tensor

from extraction.adapters.coordinates import Coordinates
from extraction.library import DirectionLibrary, attach_basis
from extraction.vocabulary import Basis, LossType
from probe.arms import Arm, DirectionKind, get_arm
from probe.config import GateConfig, ReplayConfig
from probe.gram import GramRecorder
from probe.inputs import Inputs
from probe.loop import Setup, is_complete, open_run, run_steps
from probe.objective import Objective
from probe.passes import Bases
from probe.planning import PlanningMarker
from probe.precision import dtype_noise
from probe.sources import ReplaySource
from probe.step import Measure
from probe.timings import Timings
from replay_pools.errors import InputError
from replay_pools.policy import Policy


def replay(
    config: ReplayConfig,
    directory: Path,
    *,
    out_dir: Path,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run (or resume) a replay into `directory`; caches live under `out_dir`/cache.

    Raises:
        InputError: anything wrong with the options, pools, model or directions.
    """
    arms = _arms(config)
    timings = Timings(out_dir / "cache")
    inputs = Inputs(config, out_dir, say)
    config = inputs.config
    source = ReplaySource(
        inputs.pools,
        per_pool=config.source.per_pool,
        match=config.source.match,
        steps=config.source.steps,
        seed=config.seed,
    )
    with timings.phase("load", uses_cache=False):
        policy = inputs.policy
    done = open_run(directory, inputs.record())
    if is_complete(directory):
        say(f"{directory} is complete; nothing to do")
        return
    setup = _setup(config, arms, policy, source, directory, out_dir / "cache", timings, say)
    timings.write_start(directory)
    run_steps(directory, source, setup, done=done, timings=timings, lr=config.lr, progress=progress)


def _arms(config: ReplayConfig) -> list[Arm]:
    """The arms by name, checked against the other options."""
    arms = [get_arm(name) for name in config.arms]
    if len({arm.name for arm in arms}) != len(arms) or not arms:
        raise InputError("--arm", expected="different arms, at least one", found=",".join(config.arms) or "none")
    if config.lr > 0 and len(arms) > 1:
        raise InputError("--arm", expected="one arm when --lr is above 0", found=",".join(config.arms))
    if config.lr > 0 and len(config.conditions) > 1:
        found = ", ".join(condition.name for condition in config.conditions)
        raise InputError("--condition", expected="one condition when --lr is above 0", found=found)
    return arms


def _setup(
    config: ReplayConfig,
    arms: Sequence[Arm],
    policy: Policy,
    source: ReplaySource,
    directory: Path,
    cache_dir: Path,
    timings: Timings,
    say: Callable[[str], None],
) -> Setup:
    """Adapt the policy in every basis and get the directions of every arm under every condition."""
    conditions = {condition.name: condition.objective for condition in config.conditions}
    bases = _attach(policy, arms, config.model.lora_rank, cache_dir, timings)
    with timings.phase("directions", uses_cache=True):
        directions = _Directions(config, policy, bases, cache_dir, say)
        measures = [
            _measure(name, arm, directions.vectors(arm.basis, arm.directions, *_normaliser(own)), config.gate)
            for name, own in conditions.items()
            for arm in arms
        ]
        gram = None
        if "svd" in bases:
            primary = _normaliser(config.conditions[0].objective)
            own = directions.library("svd", *primary)
            gram = GramRecorder(directory, own.pair_gradients, own.v_hack)
    adapted = Bases(coordinates=list(bases.values()), tokens_per_batch=config.extraction.tokens_per_batch)
    noise = None
    if config.model.dtype_noise:
        with timings.phase("dtype noise", uses_cache=False):
            noise = dtype_noise(adapted, measures, source, config.model.dtype_noise, policy.pad_id)
    return Setup(
        bases=adapted,
        conditions=conditions,
        measures=measures,
        planning=PlanningMarker(policy.tokenizer, config.planning_phrases),
        pad_id=policy.pad_id,
        gram=gram,
        dtype_noise=noise,
    )


def _attach(
    policy: Policy, arms: Sequence[Arm], lora_rank: int, cache_dir: Path, timings: Timings
) -> dict[Basis, Coordinates]:
    """One adapted copy of the policy for each basis; the copies share the weights."""
    names: list[Basis] = list(dict.fromkeys(arm.basis for arm in arms))
    shared = {id(tensor): tensor for tensor in (*policy.model.parameters(), *policy.model.buffers())}
    models = [policy.model, *(copy.deepcopy(policy.model, dict(shared)) for _ in names[1:])]
    bases: dict[Basis, Coordinates] = {}
    for basis, model in zip(names, models, strict=True):
        with timings.phase(basis, uses_cache=basis == "svd"):
            bases[basis] = attach_basis(replace(policy, model=model), basis, rank=lora_rank, cache_dir=cache_dir)
    return bases


def _normaliser(objective: Objective) -> tuple[LossType, int | None]:
    """What pairs and rollouts have in common, so that directions and gradients are of the same loss."""
    return objective.loss_type, objective.max_completion_length


class _Directions:
    """Directions by basis, kind and normaliser, each made once: arms and conditions that agree share the tensors."""

    def __init__(
        self,
        config: ReplayConfig,
        policy: Policy,
        bases: Mapping[Basis, Coordinates],
        cache_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._policy, self._bases, self._cache_dir, self._say = config, policy, bases, cache_dir, say
        self.library = cache(self._library)
        self.vectors = cache(self._vectors)

    def _library(self, basis: Basis, loss_type: LossType, max_completion_length: int | None) -> DirectionLibrary:
        config = self._config
        return DirectionLibrary(
            self._policy,
            self._bases[basis],
            replace(config.extraction, loss_type=loss_type, max_completion_length=max_completion_length),
            cache_dir=self._cache_dir,
            seed=config.seed,
            v_hack=None if config.v_hack is None else Path(config.v_hack),
            say=self._say,
        )

    def _vectors(
        self, basis: Basis, kind: DirectionKind, loss_type: LossType, max_completion_length: int | None
    ) -> Mapping[str, Tensor]:
        """{module: (k, r)} on the policy's device."""
        found = self.library(basis, loss_type, max_completion_length).get(kind)
        return found.to(self._policy.device).vectors


def _measure(condition: str, arm: Arm, vectors: Mapping[str, Tensor], gate: GateConfig) -> Measure:
    return Measure(
        condition=condition,
        arm=arm,
        vectors=vectors,
        gate=gate.gate or arm.gate,
        overshoot=gate.overshoot,
        preserve_magnitude=gate.preserve_magnitude,
    )
