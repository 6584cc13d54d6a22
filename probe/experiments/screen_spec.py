"""What a screen reads and writes of specs: remedies that are conditions, what their trainings became, the best ones.

The best stand beside vanilla, and beside a control of the first if that is a gate.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from probe.analysis.evidence import Evidence
from probe.analysis.foretold import AHEAD_STEPS
from probe.analysis.screen import Screened
from probe.analysis.verdict.trained_arms import TrainedArm, of_runs
from probe.experiments.jobs import run_jobs
from probe.experiments.load import load_spec
from probe.experiments.spec import SpecCondition
from probe.experiments.training_spec import toml_decisions, toml_rows, toml_tables, training_settings
from probe.records.run import elsewhere, read_run
from probe.settings.remedy import LENGTH, TRAINED_ARMS, TRAINING_STEPS, arm_of
from probe.settings.run import read_config
from replay_pools.errors import InputError
from replay_pools.storage.files import write_once
from replay_pools.storage.tables import decode, flat, read_toml, toml_text

CONTROL, PLAIN_ARM = "permuted-dosed", "vanilla"
NOT_SHOWN = "The forecast of the first pick is not confirmed."
SEEDS = 4
TEMPLATE = """\
# What the screen of {run} picks, beside vanilla; and, if the first pick is a gate, shuffled pairs that remove as much.
# Written by `probe screen`. ASSUMED, and yours to change before the first run: {seeds} seeds, and the training itself.
arms = ["projected", "vanilla", "{control}"]
seeds = {seed_list}

[experiment]
name = "{name}"
question = "Do the remedies that the forecast picks lower hacking, and more than shuffled pairs that remove as much?"
hypotheses = ["H1: {first} lowers hacking{points}."]

[settings]
{settings}

[[conditions]]
name = "plain"
arms = ["vanilla"]

{conditions}

{criteria}

{decisions}
"""


class _Conditions(BaseModel):
    """What is read of a spec."""

    conditions: tuple[SpecCondition, ...] = ()
    arms: tuple[str, ...] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


def read_candidates(path: Path) -> dict[str, dict[str, Any]]:
    """{remedy: settings} of the conditions in a TOML file, as a spec has them: one an arm, but for plain vanilla.

    Of the settings that all conditions share, those of the loss count where a condition changes the loss, and the steps
    where it changes these: its own are then as many of TRAINING_STEPS.

    Raises:
        InputError: the file cannot be read; it has no such conditions, or a faulty one.
    """
    table = decode(_Conditions, read_toml(path, "a spec, or the conditions of one"), path, extra="allow")
    common = flat(table.settings)
    shared = {key: value for key, value in common.items() if key.startswith("objective.")}
    candidates: dict[str, dict[str, Any]] = {}
    for condition in table.conditions:
        settings = flat(condition.settings)
        steps, of_spec = settings.get(LENGTH), common.get(LENGTH, TRAINING_STEPS)
        if isinstance(steps, int) and isinstance(of_spec, int) and of_spec > 0:
            settings[LENGTH] = max(1, round(steps / of_spec * TRAINING_STEPS))
        arms = condition.arms or table.arms or (arm_of(settings),)
        for arm in arms:
            if settings or arm != PLAIN_ARM:
                loss = shared if any(key.startswith("objective.") for key in settings) else {}
                candidates[_remedy(condition.name, arm, arms)] = loss | settings | {TRAINED_ARMS: [arm]}
    if not candidates:
        raise InputError(path, expected="[[conditions]] that differ from plain vanilla", found="none")
    return candidates


def trained_remedies(path: Path, out_dir: Path) -> tuple[TrainedArm | None, dict[str, TrainedArm]]:
    """(plain vanilla, {remedy: its trainings}) of the complete trainings of a spec.

    None and empty for a file of conditions that is no spec.
    """
    if "experiment" not in read_toml(path, "a spec"):
        return None, {}
    spec, runs = load_spec(path), dict[tuple[str, str], list[Evidence]]()
    for job in run_jobs(spec, out_dir):
        if job.complete and job.config.verb == "train":
            runs.setdefault((job.conditions[0], job.arms[0]), []).append(Evidence(read_run(job.directory)))
    plain, remedies = None, {}
    for (condition, arm), evidence in runs.items():
        if arm != PLAIN_ARM or spec.condition(condition).settings:
            remedies[_remedy(condition, arm, spec.resolved[condition].arms)] = of_runs(condition, arm, evidence)
        else:
            plain = of_runs(condition, arm, evidence)
    return plain, remedies


def _remedy(condition: str, arm: str, arms: Sequence[str]) -> str:
    return condition if len(arms) == 1 else f"{condition}-{arm}"


def write_screen_spec(evidence: Evidence, picks: Sequence[Screened], path: Path, *, out_dir: Path) -> None:
    """Write the spec of at least one pick, the best first.

    Raises:
        InputError: the run names no environment to train in; a file that is there has other contents.
    """
    run, first = evidence.records, picks[0]
    settings = training_settings(run, read_config(run.settings, run.path), evidence.condition, out_dir)
    conditions = []
    for number, pick in enumerate(picks):
        arm = arm_of(pick.settings)
        arms = [arm, CONTROL] if number == 0 and arm == "projected" else [arm]
        changes = {f"settings.{key}": value for key, value in pick.settings.items() if key != TRAINED_ARMS}
        conditions.append({"name": pick.remedy, "arms": arms, **changes})
    lowers = {"metric": "hack_final", "statistic": "upper95", "comparison": "<", "threshold": 0.0, "unit": "seed"}
    sides = {"arm": arm_of(first.settings), "condition": first.remedy, "versus_arm": PLAIN_ARM}
    criterion = {"name": "lowers-hacking", "role": "primary", **lowers, **sides, "versus_condition": "plain"}
    ahead = "" if first.moved is None else f" --lookahead {AHEAD_STEPS}"
    hold = f"probe screen {shlex.quote(run.path.name)}{ahead} --remedies {shlex.quote(str(path))}{elsewhere(out_dir)}"
    held = f"Hold the forecasts against the falls of all picks: {hold}"
    decisions = {"THE FIRST PICK LOWERS HACKING": (held, {"lowers-hacking": "PASS"}), "NOT SHOWN": (NOT_SHOWN, {})}
    text = TEMPLATE.format(
        run=run.path.name,
        name=path.stem,
        first=first.remedy,
        points="" if first.fall is None else f", by {100 * first.fall.value:.0f} points as forecast",
        control=CONTROL,
        seeds=SEEDS,
        seed_list=toml_text([*range(SEEDS)]),
        settings=toml_rows(settings),
        conditions=toml_tables("conditions", conditions),
        criteria=toml_tables("criteria", [{**criterion, "paired": False}]),
        decisions=toml_decisions(decisions),
    )
    write_once(path, text.encode(), "move it, or name another file with --spec")
