"""The training spec of what a screen picks: the best remedies beside vanilla, and a control of the first if a gate."""

from collections.abc import Sequence
from pathlib import Path

from probe.analysis.evidence import Evidence
from probe.analysis.screen import Screened
from probe.experiments.training_spec import training_settings
from probe.settings.remedy import arm_of
from probe.settings.run import read_config
from replay_pools.storage.files import write_once
from replay_pools.storage.tables import toml_text

CONTROL = "permuted-dosed"
SEEDS = 4
TEMPLATE = """\
# What the screen of {run} picks, beside vanilla; and, if the first pick is a gate, shuffled pairs that remove as much.
# Written by `probe screen`. ASSUMED, and yours to change before the first run: {seeds} seeds, and the training itself.
arms = ["projected", "vanilla", "{control}"]
seeds = {seed_list}

[experiment]
name = "{name}"
question = "Do the remedies that the forecast picks lower hacking, and more than shuffled pairs that remove as much?"
hypotheses = ["H1: {first} lowers hacking, by {points:.0f} points as forecast."]

[settings]
{settings}

[[conditions]]
name = "plain"
arms = ["vanilla"]

{conditions}
[[criteria]]
name = "lowers-hacking"
metric = "hack_final"
statistic = "upper95"
comparison = "<"
threshold = 0.0
unit = "seed"
role = "primary"
arm = "{arm}"
condition = "{first}"
versus_arm = "vanilla"
versus_condition = "plain"
paired = false

[[decisions]]
name = "THE FIRST PICK LOWERS HACKING"
then = "Hold the forecasts against the falls of all picks."
requires = {{ lowers-hacking = "PASS" }}

[[decisions]]
name = "NOT SHOWN"
then = "The forecast of the first pick is not confirmed."
"""


def write_screen_spec(evidence: Evidence, picks: Sequence[Screened], path: Path, *, out_dir: Path) -> None:
    """Write the spec of at least one pick, the best first.

    Raises:
        InputError: the run names no environment to train in; a file that is there has other contents.
    """
    run, first = evidence.records, picks[0]
    assert first.fall is not None  # it was picked for it
    settings = training_settings(run, read_config(run.settings, run.path), evidence.condition, out_dir)
    parts = []
    for number, pick in enumerate(picks):
        arm = arm_of(pick.settings)
        arms = [arm, CONTROL] if number == 0 and arm == "projected" else [arm]
        changes = [f"settings.{key} = {toml_text(value)}" for key, value in pick.settings.items()]
        lines = ["[[conditions]]", f'name = "{pick.remedy}"', f"arms = {toml_text(arms)}", *changes]
        parts.append("\n".join([*lines, ""]))
    text = TEMPLATE.format(
        run=run.path.name,
        name=path.stem,
        first=first.remedy,
        arm=arm_of(first.settings),
        points=100 * first.fall.value,
        control=CONTROL,
        seeds=SEEDS,
        seed_list=toml_text([*range(SEEDS)]),
        settings="\n".join(f"{key} = {toml_text(value)}" for key, value in settings.items()),
        conditions="\n".join(parts),
    )
    write_once(path, text.encode(), "move it, or name another file with --spec")
