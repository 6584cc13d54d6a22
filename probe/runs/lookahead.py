"""The lookahead of a replay: every arm takes some optimizer steps on the stored rollouts, and what moved is measured.

Step i makes the update of a training (`probe.step.step.step_only`) on group i of the replay, from the first again where
there are fewer. Every arm starts at the weights of the replay, and its steps are undone. `lookahead.jsonl` holds a
`LookaheadRecord` an arm, measure and prompt:

    hacks, honest              nats that the policy has gained on the paid hacks, and on the right honest solutions, of
                               the replay, a rollout: NUM_TEXTS of each, spread over the replay
    held-out hacks, -clean     the same of held-out pairs, a completion
    sampled hack, -exploit,    share of samples on held-out problems, with the same noise in every arm: the rates of an
    -solve                     evaluation
    progress                   <g, h> / norm(g) of the next groups at the moved policy, h the held-out margin extracted
                               there, in arms that remove v_hack
    removed by old, -new       what the gate takes of it along the directions of the start, and along those extracted
                               anew from the same pairs
    overlap                    of these two: mean squared cosine of the principal angles
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extraction.adapters.trained import Trained
from extraction.batch import make_batch
from extraction.library import DirectionLibrary, pair_batch
from extraction.selection import selected_pairs
from extraction.stacks import Stacks
from extraction.words import Basis
from probe.analysis.statistics.intervals import prompt_means
from probe.analysis.training_runs import RATES
from probe.analysis.verdict.pools import environment_of
from probe.records.records import LookaheadRecord
from probe.records.run import LOOKAHEAD_DIR, LOOKAHEAD_FILE
from probe.runs.directions import overlap
from probe.runs.heldout import HeldOut, eval_settings, hold_out
from probe.runs.loop import Setup
from probe.settings.run import ReplayConfig, normaliser
from probe.settings.training import OptimizerConfig
from probe.step.bases import Bases
from probe.step.groups import Group, GroupSource
from probe.step.projection import Projection
from probe.step.reference import References
from probe.step.step import Measure, step_only
from probe.step.update import Moves, Updater, add
from replay_pools.engines import Sampler
from replay_pools.environments.registry import get_environment
from replay_pools.generate import RolloutMaker
from replay_pools.grading.grade import Grader, canary
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout
from replay_pools.sampling import LocalEngine
from replay_pools.storage.files import encode_jsonl, write_atomic
from replay_pools.terminal import report

GROUPS = 8  # on which the old directions are held against new ones
NUM_TEXTS = 48  # of a measure, at most: 39 of 155 hacks forecast the bench as all did, errors of 4.9 and 5.0 points
# Rollouts of the replay that are texts, by measure.
TEXTS: Mapping[str, Callable[[Rollout], bool]] = {
    "hacks": lambda rollout: bool(rollout.grade.passed and rollout.hacked),
    "honest": lambda rollout: bool(rollout.gt_pass and not rollout.hacked),
}
SAMPLED: Mapping[str, Callable[[Rollout], bool]] = {f"sampled {name}": flag for name, flag in RATES.items()}


def look_ahead(
    config: ReplayConfig,
    policy: Policy,
    setup: Setup,
    source: GroupSource,
    pools: Sequence[Pool],
    directory: Path,
    say: Callable[[str], None],
) -> None:
    """Write `lookahead.jsonl` and the pools of what was sampled below `lookahead/`.

    Args:
        config: with a lookahead.
        policy: of the replay.
        setup: of its steps.
        source: of its groups.
        pools: of these; the first whose problems are known says which are sampled on.
        directory: of the run.
        say: told of what is not measured.
    """
    records: list[LookaheadRecord] = []
    measures = [measure for measure in setup.measures(0) if measure.condition == config.primary]
    with Lookahead.of(config, policy, setup, source, pools, say) as ahead:
        for number, measure in enumerate(measures):
            sampled = directory / LOOKAHEAD_DIR / measure.arm.name
            records += ahead.records(config, setup, source, measure, sampled, stale=True)
            report("arms that looked ahead", number + 1, len(measures))
    write_atomic(directory / LOOKAHEAD_FILE, encode_jsonl(record.to_json() for record in records))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookahead:
    """What is the same for all arms and remedies that look ahead from one policy on one replay."""

    policy: Policy
    texts: "_Texts"
    held_out: Callable[[Policy], HeldOut] | None  # samples on held-out problems
    say: Callable[[str], None]
    seconds: list[float] = field(default_factory=list)  # of the CPU, of the steps of each arm in turn

    @classmethod
    @contextmanager
    def of(
        cls,
        config: ReplayConfig,
        policy: Policy,
        setup: Setup,
        source: GroupSource,
        pools: Sequence[Pool],
        say: Callable[[str], None],
    ) -> Iterator["Lookahead"]:
        """While open, samples can be graded; arguments as of `look_ahead`. Without pools nothing is sampled."""
        with _held_out(config, pools) as held_out:
            if held_out is None and pools:
                say("lookahead: no pool says which environment its problems are of: nothing is sampled")
            yield cls(policy=policy, texts=_Texts(config, policy, source, setup), held_out=held_out, say=say)

    def records(
        self,
        config: ReplayConfig,
        setup: Setup,
        source: GroupSource,
        measure: Measure,
        sampled: Path,
        *,
        stale: bool = False,
    ) -> list[LookaheadRecord]:
        """What one arm moves.

        Args:
            config: with the lookahead.
            setup: whose loss and activations the steps have.
            source: whose rewards and prompts they have.
            measure: the arm.
            sampled: gets the pools of what the moved policy samples.
            stale: also hold the directions of the start against new ones, in arms that remove v_hack.
        """
        with _moved(setup.bases, measure.arm.basis) as bases:
            before = self.texts.score_at_start(bases)
            start = time.process_time()
            updater = _stepped(config, setup, source, measure, bases, self.say)
            self.seconds.append(time.process_time() - start)
            with updater.deployed():
                found = self.texts.gained(before, self.texts.score(bases))
                if self.held_out is not None:
                    with bases.read():
                        found |= _sampled(self.held_out(self.policy), sampled)
                if stale and measure.arm.removes_v_hack and config.intervention.v_hack is None:
                    found |= _stale(config, self.policy, setup, source, measure, bases)
        return [
            LookaheadRecord(arm=measure.arm.name, measure=name, prompt=str(prompt), value=value)
            for name, values in found.items()
            for prompt, value in values.items()
        ]


@contextmanager
def _moved(bases: Bases, basis: Basis) -> Iterator[Bases]:
    """While open, the policy has an adapter in a basis, whose steps are undone with it."""
    frames = bases.frames[basis]
    trained = Trained(bases.model, frames)
    try:
        yield replace(bases, frames={basis: frames}, trained=trained)
    finally:
        trained.remove()


def _stepped(
    config: ReplayConfig,
    setup: Setup,
    source: GroupSource,
    measure: Measure,
    bases: Bases,
    say: Callable[[str], None],
) -> Updater:
    """The updater of an arm after its steps."""
    settings, trained = config.lookahead, bases.trained
    assert settings is not None
    assert trained is not None
    optimizer = OptimizerConfig(lr=settings.lr, schedule="constant", max_grad_norm=settings.max_grad_norm)
    updater = Updater(trained, measure.arm, optimizer, settings.steps, measure.target)
    references = References(trained)
    for number in range(settings.steps):
        groups = source.groups(number % source.num_steps)
        _, broken = _step(setup, groups, measure, bases, references, updater)
        references.update()
        if broken:
            say(f"lookahead of {measure.arm.name}: stopped after {number} steps: {broken}")
            break
    return updater


def _step(
    setup: Setup, groups: Sequence[Group], measure: Measure, bases: Bases, references: References, updater: Moves
) -> tuple[Projection, str | None]:
    with setup.in_update():
        return step_only(
            bases,
            groups,
            measure,
            setup.conditions[measure.condition],
            planning=[setup.planning(ids) for group in groups for ids in group.completion_ids],
            pad_id=setup.pad_id,
            references=references,
            updater=updater,
        )


@dataclass(slots=True)
class _Kept:
    """Takes no step; keeps the gradient."""

    gradient: Mapping[str, Tensor] = field(default_factory=dict)

    def step(
        self, gradients: Mapping[str, Tensor], gate: Callable[[Mapping[str, Tensor]], Projection]
    ) -> Mapping[str, Tensor]:
        self.gradient = gradients
        return gradients


def _stale(
    config: ReplayConfig, policy: Policy, setup: Setup, source: GroupSource, measure: Measure, bases: Bases
) -> dict[str, Mapping[Any, float]]:
    """{measure: {prompt: value}} of the directions of the start beside those of the policy as it is."""
    trained, settings = bases.trained, config.lookahead
    assert settings is not None
    assert trained is not None
    weights = normaliser(setup.conditions[measure.condition])
    # Away from the start no cache is read or written.
    with trained.folded():
        library = DirectionLibrary(policy, trained.frames(), config.intervention.extraction, weights, cache_dir=None)
        fresh, pairs = Stacks.of(library.get("v_hack").to(bases.device).vectors), library.pair_gradients
    found: dict[str, Mapping[Any, float]] = {}
    if (shared := overlap(measure.vectors, fresh)) is not None:
        found["overlap"] = {"": shared}
    if not pairs.held_out.any():
        return found
    differences = {module: (pairs.hack[module] - pairs.clean[module])[pairs.held_out] for module in pairs.hack}
    norm = torch.stack([part.square().sum(1) for part in differences.values()]).sum(0).sqrt()
    margin = {
        module: (part / norm[:, None]).nan_to_num().mean(0).to(bases.device) for module, part in differences.items()
    }
    plain = replace(measure, arm=replace(measure.arm, projects=False, routes=False))
    rows: dict[str, list[float]] = {"progress": [], "removed by old": [], "removed by new": []}
    prompts, references = [], References(trained)
    for number in range(settings.steps, settings.steps + min(GROUPS, source.num_steps)):
        groups, kept = source.groups(number % source.num_steps), _Kept()
        projection, broken = _step(setup, groups, plain, bases, references, kept)
        if not (size := float(projection.before.norm)) or broken:
            continue
        prompts.append(groups[0].problem_id)
        rows["progress"].append(_inner(kept.gradient, margin) / size)
        for name, vectors in (("removed by old", measure.vectors), ("removed by new", fresh)):
            gated = replace(measure, vectors=vectors).gated(kept.gradient).gradients
            rows[name].append(_inner(add(kept.gradient, gated, scale=-1), margin) / size)
    return found | {name: prompt_means(values, prompts) for name, values in rows.items() if prompts}


def _inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return sum(float(a[module].double() @ b[module].double()) for module in a)


class _Texts:
    """The held-out pairs and the paid rollouts of a replay, whose likelihood is followed."""

    def __init__(self, config: ReplayConfig, policy: Policy, source: GroupSource, setup: Setup) -> None:
        keys = dict.fromkeys(
            key for step in range(source.num_steps) for group in source.groups(step) for key in group.keys
        )
        rollouts = [*map(source.rollout, keys)]
        self._prompts: dict[str, list[str]] = {}  # by measure
        chosen: list[Rollout] = []
        for name, is_text in TEXTS.items():
            texts = [rollout for rollout in rollouts if is_text(rollout)]
            texts = texts[:: -(-len(texts) // NUM_TEXTS) or 1]
            self._prompts[name] = [rollout.problem_id for rollout in texts]
            chosen += texts
        self._batches = []
        self._at_start: dict[Basis, list[float]] = {}
        if chosen:
            prompts, completions = zip(*((each.prompt_ids, each.completion_ids) for each in chosen), strict=True)
            self._batches.append(make_batch(prompts, completions, setup.pad_id).to(setup.bases.device))
        pairs = [pair for pair in selected_pairs(config.intervention.extraction) if pair.held_out]
        if pairs:
            self._batches.append(pair_batch(policy, pairs))
            for name in ("held-out hacks", "held-out clean"):
                self._prompts[name] = [pair.pair_id for pair in pairs]

    def score_at_start(self, bases: Bases) -> list[float]:
        """`score` before any step, which is the same for all arms of a basis."""
        (basis,) = bases.frames
        if basis not in self._at_start:
            self._at_start[basis] = self.score(bases)
        return self._at_start[basis]

    def score(self, bases: Bases) -> list[float]:
        """The log-probability of every text, nats."""
        return [value for batch in self._batches for value in bases.score(batch).double().sum(1).tolist()]

    def gained(self, before: Sequence[float], after: Sequence[float]) -> dict[str, Mapping[Any, float]]:
        """{measure: {prompt: mean gain of its texts}}."""
        gains = iter([now - then for then, now in zip(before, after, strict=True)])
        return {
            name: prompt_means([next(gains) for _ in prompts], prompts)
            for name, prompts in self._prompts.items()
            if prompts
        }


def _sampled(held_out: HeldOut, directory: Path) -> dict[str, Mapping[Any, float]]:
    """{measure: {problem: share of its samples}}."""
    rollouts = held_out.rollouts(directory, 0)
    prompts = [rollout.problem_id for rollout in rollouts]
    return {name: prompt_means([float(flag(one)) for one in rollouts], prompts) for name, flag in SAMPLED.items()}


@contextmanager
def _held_out(config: ReplayConfig, pools: Sequence[Pool]) -> Iterator[Callable[[Policy], HeldOut] | None]:
    """What samples a policy on held-out problems of the pools' environment; None where no pool names one."""
    settings, pool = config.lookahead, next((pool for pool in pools if environment_of(pool.manifest["plan"])), None)
    assert settings is not None
    if pool is None:
        yield None
        return
    plan, environment = pool.manifest["plan"], get_environment(pool.manifest["plan"]["env"])
    splits = environment.problems("train"), environment.problems("eval")
    _, problems = hold_out(*splits, min(settings.num_problems, len(splits[1]) or settings.num_problems))
    with Grader() as grader:
        canary(grader, problems)

        def sampler(policy: Policy) -> HeldOut:
            maker = RolloutMaker(
                engine=LocalEngine(policy),
                sampler=Sampler(**pool.manifest["sampler"]),
                grader=grader,
                mode=plan["mode"],
                hint=True,
                group=settings.rollouts_per_problem,
            )
            modes = eval_settings((), plan["mode"], without_hint=False)
            group = settings.rollouts_per_problem
            return HeldOut(maker, problems, modes, env=plan["env"], group=group, seed=config.seed)

        yield sampler
