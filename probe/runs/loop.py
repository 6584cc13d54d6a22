"""The loop of `probe replay` and `probe train`: run every step and write records, checkpoints and the manifest.

`probe.step.step.train_step` computes a step; this module writes the files of the run, in this order: `config.json`; for
every step the files of `before_step` and the source (in a training: evaluations, `rollouts/` and `directions/`),
`gram/step_NNN.safetensors` (in a replay), `step_NNN.tokens.jsonl.gz` (on request), `step_NNN.cos.jsonl.gz`,
`checkpoint/` (in a training) and last `steps.jsonl`, which lists the finished steps; at the end `manifest.json`, with
the reason if the run stopped early. So a resumed run ends in the same bytes as an uninterrupted one. Wall-clock times
differ and are in `timings.jsonl`, which no hash covers.

Ranks (`probe.step.distributed`) split the samples of each step or, if steps are independent, the steps. In the second
case N steps run at a time, and the run equals a run of one process byte for byte. Rank 0 writes everything that depends
on the order of steps; a rank that computed a step writes its sample and token records and inner products.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extraction.adapters.trained import save_adapter
from extraction.settings import Basis
from probe.records.records import RUN_SCHEMA, StepRecord
from probe.records.run import (
    ADAPTER_DIR,
    MANIFEST_FILE,
    OWN_POOLS,
    ROLLOUTS_DIR,
    file_hashes,
    write_samples,
    write_steps,
    write_tokens,
)
from probe.runs.control import TrainingState, warnings_of
from probe.runs.gram_recorder import GramRecorder
from probe.runs.join import Pieces, sample_records, solve_share, step_record, token_records
from probe.runs.resume import drop_checkpoints, load_checkpoint, save_checkpoint
from probe.settings.arms import measured_arm
from probe.settings.loss import LossSettings
from probe.settings.verbs import StepConfig
from probe.step.additivity import summarise_additivity
from probe.step.bases import Bases
from probe.step.groups import GroupSource
from probe.step.reference import References
from probe.step.step import Measure, train_step
from replay_pools.base.files import remove_leftovers, write_sealed
from replay_pools.base.terminal import report

if TYPE_CHECKING:
    from probe.runs.inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that the steps of a run share (`probe.runs.inputs.assemble` makes it)."""

    bases: Bases
    conditions: Mapping[str, LossSettings]  # {loss variant: its loss}
    measures: Callable[[int], Sequence[Measure]]  # of a step: every arm under every loss variant, as in the records
    planning: Callable[[Sequence[int]], Sequence[bool]]  # marks the planning tokens of a completion
    pad_id: int
    pieces: Pieces | None = None  # texts of tokens, for records of their shares
    grams: Mapping[Basis, GramRecorder] = field(default_factory=dict)  # sufficient statistics of a replay's nulls
    in_update: Callable[[], AbstractContextManager[object]] = nullcontext  # open while a step is computed
    training: TrainingState | None = None  # state of the only arm and loss variant; None: frozen weights


def run_steps(
    inputs: "Inputs[Any]",
    directory: Path,
    source: GroupSource,
    setup: Setup,
    done: Sequence[StepRecord],
    before_step: Callable[[int, bool], None],
) -> None:
    """Run the steps after the `done` ones, then write the manifest.

    `before_step` is called with the number of finished steps, before every step and after the last (True). It is called
    again after a resume and must not repeat its work.
    """
    records, training = list(done), setup.training
    first = records[-1].step + 1 if records else 0
    # Ranks split the steps unless they split the samples of each step.
    world, at_a_time = inputs.world, inputs.world.size // setup.bases.world.size
    if training is not None:
        # `steps.jsonl` may be ahead of the newest checkpoint; the steps after it are repeated with the same bytes.
        world.on_main(partial(drop_checkpoints, directory, first))
        first = load_checkpoint(directory, training)
        records = [record for record in records if record.step < first]
    for step in range(first, source.num_steps, at_a_time):
        if training is not None and training.stopped:
            break
        start = time.monotonic()
        before_step(step, False)
        steps = range(step, min(step + at_a_time, source.num_steps))
        # If ranks split the samples, all compute one step. Otherwise each rank computes a step, and the last batch may
        # have fewer steps than ranks.
        computed = steps if at_a_time == 1 else steps[world.rank : world.rank + 1]
        new = [row for one in computed for row in _run_step(inputs.config, directory, one, source, setup)]
        if at_a_time > 1:
            new = [*chain(*world.gather(new))]
        records += new
        if training is not None:
            for sentence in warnings_of(new):
                inputs.say(f"WARNING {sentence}")
            # Ranks that drift apart would silently average gradients of different policies.
            world.check_equal(training.updater.trained.values(), f"coordinates after step {step}")
        if world.is_main:
            # A broken training step has no records and does not count as done.
            num_done = step + bool(new)
            is_due = num_done % inputs.config.checkpoints.every == 0 or num_done == source.num_steps
            if training is not None and (is_due or training.stopped):
                save_checkpoint(directory, num_done, training)
            write_steps(directory, records)
            if training is not None:
                # Last, because a run killed between a checkpoint and its line in `steps.jsonl` needs the older one.
                drop_checkpoints(directory, num_done)
            seconds = (time.monotonic() - start) / len(steps)
            for recorded in steps:
                inputs.timings.write_step(directory, recorded, seconds)
        report("steps", steps.stop, source.num_steps)
    before_step(records[-1].step + 1 if records else 0, True)
    if world.is_main:
        if training is not None:
            with training.updater.deployed():
                save_adapter(training.updater.trained.model, directory / ADAPTER_DIR)
        _write_manifest(directory, source, setup, records)


def _run_step(config: StepConfig, directory: Path, step: int, source: GroupSource, setup: Setup) -> list[StepRecord]:
    """Compute and write one step; return its step records for `steps.jsonl`.

    If a number of a training step is not finite, the policy does not take the step: there are no records, only the
    reason to stop.
    """
    groups, conditions, training, world = source.groups(step), setup.conditions, setup.training, setup.bases.world
    keys = [key for group in groups for key in group.keys]
    rollouts, measures = [*map(source.rollout, keys)], setup.measures(step)
    if training is not None:
        conditions = dict.fromkeys(conditions, training.objective())
    # All rollouts of a replay count as the policy's.
    by_policy = [training is None or key.pool == ROLLOUTS_DIR for key in keys]
    # Rollouts of an earlier checkpoint count as neither.
    by_teacher = [training is not None and key.pool not in OWN_POOLS for key in keys]
    # If the update sees another prompt or other activations than sampling did, log-probabilities do not give the
    # policy's KL and entropy.
    is_off_policy = config.remedy is not None and config.remedy.is_off_policy
    on_policy = [sampled and not is_off_policy for sampled in by_policy]
    attributed = None
    if config.token_attribution is None or step < config.token_attribution:
        split = config.primary, measured_arm(config.intervention.arms) or config.intervention.arms[0]
        attributed = next(measure for measure in measures if (measure.condition, measure.arm.name) == split)
    with setup.in_update():
        result = train_step(
            setup.bases,
            groups,
            measures,
            conditions=conditions,
            planning=[setup.planning(ids) for group in groups for ids in group.completion_ids],
            on_policy=on_policy,
            pad_id=setup.pad_id,
            references=References(None) if training is None else training.references,
            updater=None if training is None else training.updater,
            check_whole=step == 0,
            attributed=attributed,
        )
    if training is not None and (broken := result.arms[0].broken) is not None:
        training.stopped = f"{broken} in step {step}"
        return []
    weights = {name: weighting.weights for name, weighting in result.weightings.items()}
    for basis, recorder in setup.grams.items():
        unit = {module: world.join(rows, len(keys)) for module, rows in result.unit[basis].items()}
        if world.is_main:
            recorder.record(step, unit, weights)
    control, staleness, entropy = dict[str, float](), None, None
    if training is not None:
        if any(on_policy):  # a teacher's tokens do not give the policy's entropy
            entropy = float(result.nll[[i for i, counts in enumerate(on_policy) if counts]].mean())
        control = training.finish_step(result, entropy)
        staleness = None if training.past is None else training.past.staleness(step)
    if world.is_main:
        for arm in result.arms:
            if setup.pieces is not None and arm.token_shares is not None:
                write_tokens(directory, step, token_records(groups, rollouts, arm, setup.pieces))
        samples = [row for arm in result.arms for row in sample_records(groups, rollouts, result, arm)]
        write_samples(directory, step, samples)
    solve, teacher = (solve_share(compress(rollouts, mine)) for mine in (by_policy, by_teacher))
    more = {"staleness": staleness, "solve": solve, "solve_teacher": teacher, "entropy": entropy}
    return [
        step_record(groups, result, arm, conditions[arm.measure.condition], control, config.reward_range, **more)
        for arm in result.arms
    ]


def _write_manifest(directory: Path, source: GroupSource, setup: Setup, records: Sequence[StepRecord]) -> None:
    """Write `manifest.json`, which marks the run as complete."""
    errors, training = [(record.step, record.additivity_error) for record in records], setup.training
    frames, dtype = setup.bases.frames, setup.bases.model.dtype
    manifest = {
        "schema": RUN_SCHEMA,
        "num_steps": source.num_steps,
        "stopped": None if training is None else training.stopped,
        "warnings": [] if training is None else warnings_of(records),
        "conditions": list(setup.conditions),
        "arms": list(dict.fromkeys(record.arm for record in records)),
        "num_modules": {basis: len(read) for basis, read in frames.items()},
        "adapted": next(iter(frames.values())).adapted,
        "num_coordinates": {basis: sum(read.sizes.values()) for basis, read in frames.items()},
        "additivity": summarise_additivity(errors, dtype),
        "files": file_hashes(directory),
    }
    # A process killed in a write leaves temporary files.
    remove_leftovers(directory)
    write_sealed(directory / MANIFEST_FILE, manifest)
