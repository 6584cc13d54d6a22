"""The lookahead of a replay: arms, and remedies, take a few optimizer steps on the stored rollouts.

Step i makes a training's update on group i of the replay, starting over after the last group. Every arm starts at the
replay's weights, and its steps are undone. `lookahead.jsonl` holds a record for each arm, measure and prompt:

    hacks, honest                     gain in log-probability, in nats a rollout, of the replay's rewarded hacks and of
                                      its right honest solutions: NUM_TEXTS of each, spread over the replay
    held-out hacks, held-out clean    the same for held-out pairs, in nats a completion

A remedy is a set of settings that differ from a plain training (`probe.settings.remedy.CANDIDATES`). Projection, loss,
rewards, prompts and activations act as in a training; an effect on sampling is not measured. A remedy that shortens the
training shortens the lookahead by the same factor. Its records are in `screen/NAME-HASH/` of the run.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from extraction.adapters.trained import Trained
from extraction.batch import Batch
from extraction.library import pair_batch
from extraction.pairs import selected_pairs
from extraction.settings import Basis
from probe.analysis.gains import PLAIN, Looked
from probe.analysis.statistics.intervals import prompt_means
from probe.records.records import LookaheadRecord
from probe.records.run import LOOKAHEAD_FILE, Run, default_name, read_records
from probe.runs.activations import activation_edits, edited
from probe.runs.arm_directions import arm_measures
from probe.runs.inputs import assemble
from probe.runs.loop import Setup
from probe.runs.meter import chunks
from probe.runs.monitors import open_monitor
from probe.runs.replay_inputs import ReplayInputs
from probe.runs.resume import running
from probe.runs.sources.rewards import ChangedSource, remedied
from probe.settings.arms import get_arm
from probe.settings.presets import configure
from probe.settings.remedy import LENGTH, TRAINING_STEPS, RemedyConfig, arm_of
from probe.settings.training import LookaheadConfig, OptimizerConfig
from probe.settings.verbs import ReplayConfig
from probe.step.bases import Bases
from probe.step.groups import GroupSource
from probe.step.reference import References
from probe.step.step import Measure, step_only
from probe.step.update import Updater
from replay_pools.base.errors import InputError
from replay_pools.base.files import encode_jsonl, read_json, write_atomic, write_json
from replay_pools.base.terminal import report
from replay_pools.policy.load import Policy
from replay_pools.rollout import Rollout

NUM_TEXTS = 48  # most texts of a measure; 39 hacks forecast the bench as well as all 155 (errors 4.9 and 5.0 points)
MAX_GRAD_NORM = 1.0  # cap on the gradient norm, after the projection
# {measure: which rollouts of the replay are its texts}
TEXTS: Mapping[str, Callable[[Rollout], bool]] = {
    "hacks": lambda rollout: bool(rollout.grade.passed and rollout.hacked),
    "honest": lambda rollout: bool(rollout.gt_pass) and rollout.hacked is False,
}
SCREEN_DIR, SECONDS_FILE = "screen", "seconds.json"
BASIS = get_arm(arm_of({})).basis  # basis of a training without a remedy
SEEN = ("objective.", "intervention.", "remedy.", LENGTH)  # prefixes of the settings that act in a lookahead


def with_remedy(
    config: ReplayConfig, remedy: RemedyConfig, policy: Policy, source: GroupSource, setup: Setup, out_dir: Path
) -> tuple[GroupSource, Setup]:
    """Apply a remedy to the rewards of the groups and the activations of the setup.

    The rollouts were sampled without it, so its effect on sampling is not measured. A monitor scores them once, at the
    replay's weights, also for a lookahead, which moves them.
    """
    setup = replace(setup, in_update=partial(edited, activation_edits(config, policy)))
    monitor = open_monitor(config, policy, setup.bases, out_dir)
    changed = remedied(source, remedy, policy, monitor=monitor)
    if monitor is not None:
        scored = [changed.groups(step) for step in range(source.num_steps)]
        changed = ChangedSource(source, lambda step, groups: scored[step])
    return changed, setup


class Lookahead:
    """The texts of one replay, held-out pairs and rewarded rollouts, shared by all arms and remedies.

    Args:
        config: settings of the extraction.
        say: called with a sentence if the steps of an arm stop early.
    """

    def __init__(
        self, config: ReplayConfig, policy: Policy, setup: Setup, source: GroupSource, say: Callable[[str], None]
    ) -> None:
        self._say, self._batches = say, list[Batch]()
        self._prompts: dict[str, list[str]] = {}  # by measure
        self._at_start: dict[Basis, list[float]] = {}  # equal for all arms of a basis
        keys = dict.fromkeys(
            key for step in range(source.num_steps) for group in source.groups(step) for key in group.keys
        )
        chosen: list[Rollout] = []
        for name, is_text in TEXTS.items():
            texts = [*filter(is_text, map(source.rollout, keys))]
            texts = texts[:: -(-len(texts) // NUM_TEXTS) or 1]
            self._prompts[name] = [rollout.problem_id for rollout in texts]
            chosen += texts
        if chosen:
            self._batches += chunks(policy, chosen, len(chosen), what="texts")
        if pairs := [pair for pair in selected_pairs(config.intervention.extraction) if pair.held_out]:
            self._batches.append(pair_batch(policy, pairs))
            self._prompts["held-out hacks"] = self._prompts["held-out clean"] = [pair.pair_id for pair in pairs]

    def write(
        self, directory: Path, config: ReplayConfig, setup: Setup, source: GroupSource, measures: Sequence[Measure]
    ) -> float:
        """Write the gains of every arm to `lookahead.jsonl` in `directory`; return the CPU seconds of the steps.

        `setup` has the loss and activations of the steps, `source` their rewards and prompts.
        """
        assert config.lookahead is not None
        rows, seconds = list[LookaheadRecord](), 0.0
        for number, measure in enumerate(measures):
            gains, spent = self._gains(config.lookahead, setup, source, measure)
            seconds += spent
            for name, prompts in self._prompts.items():
                means = prompt_means([next(gains) for _ in prompts], prompts)
                rows += [
                    LookaheadRecord(arm=measure.arm.name, measure=name, prompt=str(p), value=v)
                    for p, v in means.items()
                ]
            report("arms that looked ahead", number + 1, len(measures))
        write_atomic(directory / LOOKAHEAD_FILE, encode_jsonl(row.to_json() for row in rows))
        return seconds

    def _gains(
        self, settings: LookaheadConfig, setup: Setup, source: GroupSource, measure: Measure
    ) -> tuple[Iterator[float], float]:
        """Take the steps of one arm from the replay's weights, and undo them; return the texts' gains, and seconds."""
        arm, frames = measure.arm, setup.bases.frames[measure.arm.basis]
        trained = Trained(setup.bases.model, frames)
        bases = replace(setup.bases, frames={arm.basis: frames}, trained=trained)
        try:
            if arm.basis not in self._at_start:
                self._at_start[arm.basis] = self._scores(bases)
            start = time.process_time()
            optimizer = OptimizerConfig(lr=settings.lr, schedule="constant", max_grad_norm=MAX_GRAD_NORM)
            updater, references = Updater(trained, arm, optimizer, settings.steps, measure.target), References(trained)
            for number in range(settings.steps):
                groups = source.groups(number % source.num_steps)
                with setup.in_update():
                    broken = step_only(
                        bases,
                        groups,
                        measure,
                        setup.conditions[measure.condition],
                        planning=[setup.planning(ids) for group in groups for ids in group.completion_ids],
                        pad_id=setup.pad_id,
                        references=references,
                        updater=updater,
                    )
                references.update()
                if broken:
                    self._say(f"lookahead of {arm.name}: stopped after {number} steps: {broken}")
                    break
            seconds = time.process_time() - start
            with updater.deployed():
                after = self._scores(bases)
        finally:
            trained.remove()
        return iter([now - then for then, now in zip(self._at_start[arm.basis], after, strict=True)]), seconds

    def _scores(self, bases: Bases) -> list[float]:
        """Return the log-probability of every text, nats."""
        return [value for batch in self._batches for value in bases.score(batch).double().sum(1).tolist()]


def look_at_remedies(
    run: Run,
    remedies: Mapping[str, Mapping[str, Any]],
    steps: int,
    *,
    out_dir: Path,
    say: Callable[[str], None],
) -> dict[str, Looked | str]:
    """Measure the lookahead of every remedy and of plain training; read earlier measurements from disk.

    Args:
        run: a complete replay at frozen weights.
        remedies: {name: settings}.
        steps: of the lookahead.
        say: called with a sentence if the steps of a remedy stop early.

    Returns:
        {remedy or PLAIN: its lookahead, or why it has none}.

    Raises:
        InputError: the run is not a replay.
    """
    if not isinstance(run.settings, ReplayConfig):
        raise InputError(run.path, expected="a replay", found="a training")
    configs, looked = dict[str, ReplayConfig](), dict[str, Looked | str]()
    for name, settings in ({PLAIN: {}} | dict(remedies)).items():
        config = _ahead_config(run.settings, settings, steps)
        if isinstance(config, str):
            looked[name] = config
        else:
            configs[name] = config
    folders = {name: run.path / SCREEN_DIR / default_name(name, asdict(config)) for name, config in configs.items()}
    missing = {name: config for name, config in configs.items() if not (folders[name] / SECONDS_FILE).is_file()}
    if missing:
        with running(configs[PLAIN].model, run.path, out_dir, say):
            arms = dict.fromkeys(arm for config in missing.values() for arm in config.intervention.arms)
            plain = replace(configs[PLAIN], intervention=replace(configs[PLAIN].intervention, arms=(*arms,)))
            inputs = ReplayInputs(plain, out_dir, say)
            policy, groups = inputs.policy, inputs.groups()
            setup = assemble(inputs, folders[PLAIN], groups.num_steps)
            ahead = Lookahead(plain, policy, setup, groups, say)
            for number, (name, config) in enumerate(missing.items()):
                try:
                    measures, _ = arm_measures(config, policy, setup.bases.frames, out_dir / "cache", say)
                    source, changed = groups, replace(setup, conditions=config.objectives())
                    if config.remedy is not None:
                        source, changed = with_remedy(config, config.remedy, policy, groups, changed, out_dir)
                except InputError as error:  # such as too few pairs for k, or a monitor that measures nothing here
                    looked[name] = str(error)
                    continue
                seconds = ahead.write(folders[name], config, changed, source, measures)
                write_json(folders[name] / SECONDS_FILE, {"steps": seconds})  # last: it marks the remedy as measured
                report("remedies that looked ahead", number + 1, len(missing))
    for name in [name for name in configs if name not in looked]:
        records = read_records(LookaheadRecord, folders[name] / LOOKAHEAD_FILE)
        looked[name] = Looked(records, read_json(folders[name] / SECONDS_FILE)["steps"])
    return looked


def _ahead_config(replayed: ReplayConfig, settings: Mapping[str, Any], steps: int) -> ReplayConfig | str:
    """Return the settings of the replay with a remedy and a lookahead of `steps`, or why it has no lookahead."""
    if others := [key for key in settings if not key.startswith(SEEN)]:
        return f"steps on stored rollouts do not see {', '.join(others)}"
    share = settings.get(LENGTH, TRAINING_STEPS) / TRAINING_STEPS
    options = {"intervention.arms": [arm_of(settings)], "lookahead.steps": max(1, round(share * steps))}
    options |= {key: value for key, value in settings.items() if key != LENGTH}
    plain = replace(replayed, objective=replayed.objectives()[replayed.primary], conditions=())
    try:
        config = configure("replay", start=asdict(plain), options=options)
    except InputError as error:
        return str(error)
    if any(get_arm(arm).basis != BASIS for arm in config.intervention.arms):
        return "it trains in another basis than a policy without a remedy: the same rate is another step"
    return config
