"""The commands that advice proposes, with what they have to be told of a run."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from extraction.words import Basis
from probe.analysis.verdict.evidence import Evidence, PoolPlan
from probe.analysis.verdict.run_options import FLAGS, OF_FILE, K, RunOptions
from probe.settings.presets import configure

ARMS: dict[Basis, str] = {"svd": "vanilla,projected", "lora": "projected-lora"}


def extract(evidence: Evidence) -> str:
    """Directions of other pairs, comparable with those of the run."""
    options = _extraction(evidence.options, evidence.basis)
    return " ".join(["probe extract --pairs FILE.jsonl", *options, "--name OTHER"])


def direction(evidence: Evidence) -> str:
    """The direction of the run as a file: extracted from its pairs, or shown where the run was given one."""
    options = evidence.options
    if "intervention.v_hack" in options.replay:
        file = options.replay["intervention.v_hack"].removeprefix("--v-hack ")
        return f"probe directions show {file}"
    name = Path(shlex.split(options.name)[0]).name  # of a run elsewhere the path is given
    return extract_command(options, evidence.basis, name)


def extract_command(options: RunOptions, basis: Basis, name: str) -> str:
    """The extraction of a run from its own pairs: what it measured along, as a file."""
    pairs = [option for key, option in options.replay.items() if key in OF_FILE]
    return " ".join(["probe extract", *pairs, *_extraction(options, basis), f"--name {name}"])


def _extraction(options: RunOptions, basis: Basis) -> list[str]:
    """Options of `probe extract` that directions need to be comparable with those of the run."""
    return [*([] if basis == "svd" else [f"--basis {basis}"]), *options.extract.values()]


def replay(
    names: Sequence[str],
    evidence: Evidence,
    *,
    match: str | None = None,
    name: str = "again",
    without: str = " ",
    k: int | None = None,
) -> str:
    """The replay of pools, with the settings of the run.

    Args:
        names: what a command calls each pool.
        match: what the pools have in common; default: what those of the run had.
        without: the settings that begin with it are left at their defaults.
        k: directions a module; default: as many as the run had.
    """
    match = match or evidence.match
    changed = dict(evidence.options.replay)
    if k is not None:
        changed[K] = f"{FLAGS[K]} {k}"
    options = [option for key, option in changed.items() if not key.startswith(without)]
    matched = [] if match == "problem" else [f"--match {match}"]
    arms = f"--arm {ARMS[evidence.basis]}"
    pools = f"--replay-dirs {shlex.quote(','.join(names))}"
    return " ".join(["probe replay", pools, *matched, *options, arms, f"--name {name}"])


def replay_again(evidence: Evidence, *, without: str = " ", k: int | None = None) -> str:
    """The replay of the run's own pools."""
    return replay([pool.reference for pool in evidence.plans] or ["POOL"], evidence, without=without, k=k)


def generate(pool: PoolPlan, name: str, size: str = "") -> str:
    """The command that samples the policy of a pool again; `size` is an option that replaces the pool's."""
    usual = configure("generate")
    sizes = []
    for option, number, default in (
        ("--steps", pool.steps, usual.steps),
        ("--group", pool.group, usual.rollouts.group),
    ):
        if number not in (None, default) and option not in size:
            sizes.append(f"{option} {number}")
    return " ".join(filter(None, ["probe pool generate", pool.recipe, *sizes, size, f"--name {shlex.quote(name)}"]))


def regrade(pool: PoolPlan, name: str) -> str:
    """The command that grades a pool again, as one of another name."""
    return shlex.join(["probe", "pool", "regrade", pool.reference, "--name", name])
