"""Write `spec/NAME.toml`, the spec of the training that follows a replay's GO.

After another verdict the spec is written and priced too, and it states the verdict, so that a reader sees the reason
against the training together with its price. The run provides model, objective, extraction, projection and directions;
its pools provide the environment and the hacking policy. The file marks everything else as an assumption.
"""

from dataclasses import asdict
from itertools import count
from pathlib import Path
from string import Template
from typing import Any

from probe.analysis.analyze import Analysis
from probe.analysis.statistics.significance import mde
from probe.analysis.statistics.thresholds import EFFECT, MATERIAL_RATE, MIN_SEEDS, POWER, SD
from probe.analysis.verdict.pools import environment_of
from probe.records.run import Run
from probe.settings.arms import ARMS
from probe.settings.presets import configure, toml_text
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_once
from replay_pools.base.tables import flat
from replay_pools.pool import MANIFEST_NAME, pool_reference

TEMPLATE = Path(__file__).with_suffix(".toml")  # controls are norm-matched: without signal, without directions
RIVAL_BETA = 1.0  # as in spec/experiments/kl-control
ORGANISM, ORGANISM_STEPS = "organism", 64  # vanilla learns the hack in so many
TABLES = ("model", "objective", "planning_phrases", "intervention")  # shared by a training and its replay
# These keys depend on the machine or the verb, or the spec chooses them.
NOT_SHARED = ("model.name", "model.device", "intervention.arms")


def write_training_spec(run: Run, analysis: Analysis, path: Path, out_dir: Path) -> None:
    """Write the spec. Its trainings repeat the run's extraction, or read the run's direction file.

    Args:
        run: the replay.
        analysis: analysis of the run's primary condition.
        path: file of the spec; its stem is the spec's name.
        out_dir: root folder of the pools.

    Raises:
        InputError: the run is broken, is a training or has another basis; its pairs or direction file have changed; it
            has no environment to train in; or an existing file has other content.
    """
    from extraction.library import source_identity  # imports torch

    verdict, basis = analysis.verdict, analysis.verdict.about["basis"]
    if basis != "svd" or not verdict.asked:
        found = f"one in the basis {basis}" if basis != "svd" else f"{verdict.word}: {verdict.sentence}"
        expected = "a replay that can be read, in the basis svd, in which probe train has vanilla and its controls"
        raise InputError(run.path, expected=expected, found=found, fix=f"next: {verdict.next.in_line}")
    seeds = next(seeds for seeds in count(MIN_SEEDS) if mde(SD, seeds) <= EFFECT)
    settings, intervention = _settings(run, analysis.condition, out_dir), run.settings.intervention
    if source_identity(intervention.extraction, intervention.v_hack) != run.config["directions"]:
        expected, where = f"the directions that {run.path} was measured along", intervention.extraction.pairs
        raise InputError(intervention.v_hack or where, expected=expected, found="others", fix="run the replay again")
    # The run's arm that removes v_hack, in vanilla's basis.
    removing = (name for name in intervention.arms if ARMS[name].removes_v_hack and ARMS[name].basis == basis)
    arm = next(removing, "projected")
    text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        run=run.path.name,
        word=verdict.word,
        name=path.stem,
        arm=arm,
        num_seeds=seeds,
        seeds=toml_text([*range(seeds)]),
        effect=toml_text(EFFECT),
        sd=toml_text(SD),
        power=f"{POWER:.0%}",
        points=f"{100 * MATERIAL_RATE:.0f}",
        preset=settings["preset"],
        settings="\n".join(f"{key} = {toml_text(value)}" for key, value in settings.items()),
        penalty=toml_text(max(RIVAL_BETA, 10 * settings.get("objective.beta", 0.0))),
    )
    write_once(path, text.encode(), "move it")


def _settings(run: Run, condition: str, out_dir: Path) -> dict[str, Any]:
    """Return {key with dots: value} of the [settings] that differ from the preset."""
    config, model = run.settings, run.config["model"]
    preset = "fast" if model == ORGANISM else "full"
    usual = flat(asdict(configure("train", preset=preset)))
    measured = asdict(config) | {"objective": asdict(config.objectives()[condition])}
    shared = flat({table: measured[table] for table in TABLES}).items()
    wanted: dict[str, Any] = {"model.name": model} | ({"steps": ORGANISM_STEPS} if model == ORGANISM else {})
    wanted |= {key: value for key, value in shared if key not in NOT_SHARED}
    # The environment is that of the run's pools; a pool of another policy becomes the teacher.
    manifests, others = {}, []
    for path in (Path(pool["path"]) for pool in run.config["pools"]):
        name = pool_reference(path, out_dir)
        manifests[name] = read_json(path / MANIFEST_NAME)
        policy = manifests[name].get("policy") or {}
        if policy.get("adapter") != config.model.adapter or policy.get("base_model") not in (None, model):
            others.append(name)
    teacher = (*others, None)[0]
    plan = manifests[teacher or next(iter(manifests))].get("plan") or {}
    if environment_of(plan) is None:
        raise InputError(
            f"{run.path} pools",
            expected="pools of an environment that probe train can sample from",
            found="rollouts of another program",
            fix="train in your own trainer, along the directions of the run: probe docs trainers",
        )
    wanted |= {f"rollouts.{key}": plan[key] for key in ("env", "mode", "hint")}
    # The preset's number of problems fits only the preset's environment.
    if plan["env"] != usual["rollouts.env"]:
        wanted["rollouts.num_problems"] = None
    if teacher is not None:
        wanted["rollouts.teacher.pool"] = teacher
    elif "rollouts.teacher.pool" in usual:
        wanted["rollouts.teacher"] = None
    missing = object()
    different = {key: value for key, value in wanted.items() if value != usual.get(key, missing)}
    return {"verb": "train", "preset": preset, **different}
