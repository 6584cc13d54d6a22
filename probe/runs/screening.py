"""Screening: the lookahead of every remedy from one replay, all from the same weights.

A remedy is a set of settings that differ from a plain training (`probe.settings.remedy.CANDIDATES`). Projection, loss,
rewards, prompts and activations act as in a training. The rollouts are stored, so a remedy's effect on sampling is not
measured. A remedy that shortens the training shortens the lookahead by the same factor.

`screen/NAME-HASH/lookahead.jsonl` of the run holds the `LookaheadRecord`s of one measured remedy.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from probe.analysis.lookahead import PLAIN, Looked
from probe.records.records import LookaheadRecord
from probe.records.run import LOOKAHEAD_FILE, Run, default_name, read_records
from probe.runs.assemble import assemble
from probe.runs.directions import arm_measures
from probe.runs.lookahead import Lookahead, write_lookahead
from probe.runs.replay import with_remedy
from probe.runs.replay_inputs import ReplayInputs
from probe.runs.resume import running
from probe.settings.arms import get_arm
from probe.settings.presets import configure
from probe.settings.remedy import LENGTH, TRAINING_STEPS, arm_of
from probe.settings.run import ReplayConfig
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_json
from replay_pools.base.terminal import report

SCREEN_DIR, SECONDS_FILE = "screen", "seconds.json"
BASIS = get_arm(arm_of({})).basis  # basis of a training without a remedy
SEEN = ("objective.", "intervention.", "remedy.", LENGTH)  # prefixes of the settings that act in a lookahead


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
        steps: steps of the lookahead.
        out_dir: the folder of pools and caches.
        say: called with a sentence if the steps of a remedy stop early.

    Returns:
        {remedy or PLAIN: its lookahead, or why it has none}.

    Raises:
        InputError: the run is not a replay.
    """
    if not isinstance(run.settings, ReplayConfig):
        raise InputError(run.path, expected="a replay", found="a training")
    configs, found = dict[str, ReplayConfig](), dict[str, Looked | str]()
    for name, settings in ({PLAIN: {}} | dict(remedies)).items():
        config = _ahead_config(run.settings, settings, steps)
        if isinstance(config, str):
            found[name] = config
        else:
            configs[name] = config
    folders = {name: run.path / SCREEN_DIR / default_name(name, asdict(config)) for name, config in configs.items()}
    missing = {name: config for name, config in configs.items() if not (folders[name] / LOOKAHEAD_FILE).is_file()}
    if missing:
        with running(configs[PLAIN].model, run.path, out_dir, say):
            found |= _look(configs[PLAIN], missing, folders, out_dir, say)
    for name, folder in folders.items():
        if name not in found:
            found[name] = Looked(
                read_records(LookaheadRecord, folder / LOOKAHEAD_FILE), read_json(folder / SECONDS_FILE)["steps"]
            )
    return found


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


def _look(
    plain: ReplayConfig,
    remedies: Mapping[str, ReplayConfig],
    folders: Mapping[str, Path],
    out_dir: Path,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Write the records of the remedies; return {remedy: why it has no lookahead}."""
    unseen: dict[str, str] = {}
    names = (*dict.fromkeys(name for remedy in remedies.values() for name in remedy.intervention.arms),)
    inputs = ReplayInputs(replace(plain, intervention=replace(plain.intervention, arms=names)), out_dir, say)
    policy, groups = inputs.policy, inputs.groups()
    setup = assemble(inputs, folders[PLAIN], groups.num_steps)
    ahead = Lookahead(plain, policy, setup, groups, say)
    for number, (name, remedy) in enumerate(remedies.items()):
        try:
            (measure,), _ = arm_measures(remedy, policy, setup.bases.frames, out_dir / "cache", say)
            of_remedy = replace(setup, conditions=remedy.objectives())
            source, changed = with_remedy(remedy, policy, groups, of_remedy, out_dir)
        except InputError as error:  # for example too few pairs for k, or a monitor that measures nothing here
            unseen[name] = str(error)
            continue
        records = ahead.records(remedy, changed, source, measure)
        write_json(folders[name] / SECONDS_FILE, {"steps": ahead.seconds})  # differs between runs
        write_lookahead(folders[name], records)
        report("remedies that looked ahead", number + 1, len(remedies))
    return unseen
