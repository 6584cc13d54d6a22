"""The loop of `probe replay` and `probe train`: runs every step and writes records, checkpoints and the manifest.

`probe.step.step.train_step` computes a step; the files of a run are written by this one.

A run directory fills in this order: `config.json`; for every step what `before_step` and the source write (in training
evaluations, `rollouts/` and `directions/`), `gram/step_NNN.safetensors` (in a replay), `step_NNN.tokens.jsonl.gz` (on
request), `step_NNN.cos.jsonl.gz`, `checkpoint/` (when it trains) and last `steps.jsonl`, whose lines say which steps
are done; at the end `manifest.json`, with the reason if a run stopped early. So a run that was killed and resumed ends
in the same bytes as one that was not. Wall-clock times differ from run to run and live in `timings.jsonl`, which
no hash covers.

Several ranks (`probe.step.distributed`) share out the samples of each step, or, where steps are independent of one
another, the steps: then N steps are done at a time, and the run is that of one process, byte for byte. Rank 0 alone
writes what the order of steps matters to; the sample and token records and inner products of a step are written by a
rank that computed it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from pathlib import Path

from extraction.words import Basis
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
from probe.records.timings import Timings
from probe.runs.control import TrainingState, passed, warnings_of
from probe.runs.gram_recorder import GramRecorder
from probe.runs.join import Pieces, sample_records, solve_share, step_record, token_records
from probe.runs.resume import drop_checkpoints, load_checkpoint, save_checkpoint
from probe.settings.loss import LossSettings
from probe.settings.training import CheckpointConfig
from probe.step.additivity import summarise_additivity
from probe.step.bases import Bases
from probe.step.distributed import SOLO, World
from probe.step.groups import GroupSource
from probe.step.reference import References
from probe.step.step import Measure, train_step
from replay_pools.base.files import remove_leftovers, write_sealed
from replay_pools.base.terminal import report
from replay_pools.policy.adapters import START, copy_adapter
from replay_pools.rollout import REWARD_RANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all steps of a run share (`probe.runs.assemble` makes it)."""

    bases: Bases
    conditions: Mapping[str, LossSettings]  # by name, the primary first
    measures: Callable[[int], Sequence[Measure]]  # at a step: every arm under every condition, as in the records
    planning: Callable[[Sequence[int]], Sequence[bool]]  # marks the planning tokens of a completion
    pad_id: int
    references: References  # of the KL; where the policy trains, those of its `TrainingState`, which moves them
    grams: Mapping[Basis, GramRecorder]  # record the sufficient statistics of the nulls; empty where the policy trains
    reward_range: float = REWARD_RANGE  # largest minus smallest reward that the loss can see
    # The one of a step's measures whose cosines are split over tokens; None: of none.
    attributed: Callable[[int, Sequence[Measure]], Measure | None] = lambda step, measures: None
    pieces: Pieces | None = None  # texts of tokens, for those records
    world: World = SOLO  # all ranks; they share out the steps unless `bases.world` shares out the samples of each
    in_update: Callable[[], AbstractContextManager[object]] = nullcontext  # open while a step is computed
    is_off_policy: bool = False  # a remedy changes prompts or activations of the update alone
    training: TrainingState | None = None  # of the one arm under the one condition; None: frozen weights


def run_steps(
    directory: Path,
    source: GroupSource,
    setup: Setup,
    *,
    done: Sequence[StepRecord],
    timings: Timings,
    checkpoints: CheckpointConfig | None = None,
    before_step: Callable[[int, bool], None] = lambda done, last: None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Run every step that is not done, then write the manifest.

    Args:
        directory: of the run.
        source: the groups of every step.
        setup: what all steps share.
        done: the step records that are already there, from `probe.runs.resume.open_run`.
        timings: gets the seconds of every step.
        checkpoints: when the state of the training is written; default: after every step.
        before_step: called with the number of steps done, before every step and after the last (True), and again after
            a resume: it must leave alone what it has done already.
        say: gets a line for every step of a training that passes a bound of its warnings.
    """
    records, training = list(done), setup.training
    first = 1 + max((record.step for record in records), default=-1)
    checkpoints = checkpoints or CheckpointConfig()
    world, at_a_time = setup.world, setup.world.size // setup.bases.world.size
    if training is not None:
        # `steps.jsonl` may run ahead of the newest checkpoint: the steps after it are done again, to the same bytes.
        world.on_main(partial(drop_checkpoints, directory, first))
        first = load_checkpoint(directory, training)
        records = [record for record in records if record.step < first]
    for step in range(first, source.num_steps, at_a_time):
        if training is not None and training.stopped:
            break
        start = time.monotonic()
        before_step(step, False)
        steps = range(step, min(step + at_a_time, source.num_steps))
        # Where ranks share out the samples, all of them compute the one step; else each rank computes one, and the last
        # steps of a run may be fewer than the ranks.
        computed = steps if at_a_time == 1 else steps[world.rank : world.rank + 1]
        new = [row for one in computed for row in _run_step(directory, one, source, setup)]
        if at_a_time > 1:
            new = [*chain(*world.gather(new))]
        records += new
        if training is not None:
            for row in new:
                for name, (value, bound) in passed(row).items():
                    say(f"WARNING step {row.step}: {name} {value:.4g} above {bound:g}")
            # Ranks that drift apart would average gradients of different policies without any error.
            world.check_equal(training.updater.trained.values(), f"coordinates after step {step}")
        if world.is_main:
            # A step of training that broke has no records and does not count as done.
            num_done = step + bool(new)
            is_due = num_done % checkpoints.every == 0 or num_done == source.num_steps
            if training is not None and (is_due or training.stopped):
                save_checkpoint(directory, num_done, training)
            write_steps(directory, records)
            if training is not None:
                # Last: a run killed between a checkpoint and its line in `steps.jsonl` needs the checkpoint before.
                drop_checkpoints(directory, num_done)
            seconds = (time.monotonic() - start) / len(steps)
            for recorded in steps:
                timings.write_step(directory, recorded, seconds)
        report("steps", steps.stop, source.num_steps)
    before_step(1 + max((record.step for record in records), default=-1), True)
    if world.is_main:
        if training is not None:
            _save_adapter(directory, training)
        _write_manifest(directory, source, setup, records)


def _run_step(directory: Path, step: int, source: GroupSource, setup: Setup) -> list[StepRecord]:
    """Compute and write one step; its step records are returned for `steps.jsonl`.

    A step of a run that trains in which a number is not finite leaves no trace but the reason to stop: the policy did
    not take it, and there are no records.
    """
    groups = source.groups(step)
    keys = [key for group in groups for key in group.keys]
    rollouts = [source.rollout(key) for key in keys]
    conditions, training = setup.conditions, setup.training
    if training is not None:
        conditions = dict.fromkeys(conditions, training.objective())
    measures = setup.measures(step)
    # All rollouts of a replay count, whoever sampled them.
    by_policy = [training is None or key.pool == ROLLOUTS_DIR for key in keys]
    # What the policy sampled as it was is of neither.
    by_teacher = [training is not None and key.pool not in OWN_POOLS for key in keys]
    # Where the update reads a token under another prompt or other activations than it was sampled under, its
    # log-probability gives no KL and no entropy of the policy.
    on_policy = [sampled and not setup.is_off_policy for sampled in by_policy]
    with setup.in_update():
        result = train_step(
            setup.bases,
            groups,
            measures,
            conditions=conditions,
            planning=[setup.planning(ids) for group in groups for ids in group.completion_ids],
            on_policy=on_policy,
            pad_id=setup.pad_id,
            references=setup.references,
            updater=None if training is None else training.updater,
            check_whole=step == 0,
            attributed=setup.attributed(step, measures),
        )
    if training is not None and (broken := result.arms[0].broken) is not None:
        training.stopped = f"{broken} in step {step}"
        return []
    world = setup.bases.world
    weights = {name: weighting.weights for name, weighting in result.weightings.items()}
    for basis, recorder in setup.grams.items():
        unit = {module: world.join(rows, len(keys)) for module, rows in result.unit[basis].items()}
        if world.is_main:
            recorder.record(step, unit, weights)
    control: dict[str, float] = {}
    staleness: int | None = None
    entropy: float | None = None
    if training is not None:
        if any(on_policy):  # the surprisal of a teacher's tokens says nothing of the policy
            entropy = float(result.nll[[i for i, counts in enumerate(on_policy) if counts]].mean())
        control = training.finish_step(result, rollouts, by_policy, entropy)
        staleness = None if training.past is None else training.past.staleness(step)
    if world.is_main:
        for arm in result.arms:
            if setup.pieces is not None and arm.token_shares is not None:
                write_tokens(directory, step, token_records(groups, rollouts, arm, setup.pieces))
        samples = [row for arm in result.arms for row in sample_records(groups, rollouts, result, arm)]
        write_samples(directory, step, samples)
    solve = solve_share(compress(rollouts, by_policy)), solve_share(compress(rollouts, by_teacher))
    return [
        step_record(
            groups,
            result,
            arm,
            conditions[arm.measure.condition],
            control,
            setup.reward_range,
            solve,
            staleness=staleness,
            entropy=entropy,
        )
        for arm in result.arms
    ]


def _save_adapter(directory: Path, training: TrainingState) -> None:
    """Save the deployed policy as a peft directory; with quarantined weights, the policy in training beside it."""
    trained = training.updater.trained
    with training.updater.deployed():
        trained.save(directory / ADAPTER_DIR)
    if training.updater.routes:
        trained.save(directory / f"{ADAPTER_DIR}-training")
        start = directory / ADAPTER_DIR / START
        if start.is_dir():
            copy_adapter(start, directory / f"{ADAPTER_DIR}-training" / START)


def _write_manifest(directory: Path, source: GroupSource, setup: Setup, records: Sequence[StepRecord]) -> None:
    """Write `manifest.json`, whose presence says that the run is complete."""
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
        "truncation": {basis: read.truncation for basis, read in frames.items()},
        "files": file_hashes(directory),
    }
    # Temporary files of a process that was killed in a write.
    remove_leftovers(directory)
    write_sealed(directory / MANIFEST_FILE, manifest)
