"""Planted trainings: the finished runs of a training spec, with held-out rates that a test chooses.

    plant(spec, out, {"gradient vanilla": (0.02, 0.6, 0.7, 0.5), ...}, make_rollout, pool_header)

The rates of an arm are its hack and solve rates at the start, and those at the end. What a problem gives is drawn, with
problems and seeds that are harder or easier than others; files are those of a real run, and read by the real readers.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from directories import contents
from worlds import World, make_run

from probe.experiments.jobs import Job, run_jobs
from probe.experiments.spec import Spec
from probe.records.run import CONFIG_FILE, EVALS_FILE, EVALUATIONS_DIR, MANIFEST_FILE, file_hashes
from probe.runs.evaluations import evaluate
from replay_pools.base.files import (
    encode_jsonl,
    read_json,
    read_sealed,
    write_atomic,
    write_gz,
    write_json,
    write_sealed,
)
from replay_pools.pool import PoolWriter, encode_group
from replay_pools.rollout import Rollout

Rates = tuple[float, float, float, float]  # hack and solve at the start, hack and solve at the end
Planted = Callable[[Path, str, Mapping[str, Rates]], tuple[Spec, Path]]  # the fixture `planted`
SPREAD = 0.4  # of problems, and a quarter of it of seeds, on the logit scale


def plant(
    spec: Spec,
    out: Path,
    rates: Mapping[str, Rates],
    make_rollout: Callable[..., Rollout],
    header: dict[str, Any],
    *,
    problems: int = 32,
) -> None:
    """Write every training of the spec whose "CONDITION ARM" is among the rates."""
    for run in run_jobs(spec, out):
        name = f"{run.conditions[0]} {run.arms[0]}"
        if name in rates:
            _write(run, rates[name], make_rollout, header, problems)


def _write(job: Job, rates: Rates, make_rollout: Callable[..., Rollout], header: dict[str, Any], problems: int) -> None:
    # Where rewards never differ, no step moves the weights.
    for name, data in _files_of_a_run(job.arms, rates[:2] != rates[2:]).items():
        (job.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (job.directory / name).write_bytes(data)
    config = read_json(job.directory / CONFIG_FILE) | {"settings": asdict(job.config), "pools": []}
    write_json(job.directory / CONFIG_FILE, config)
    rng = np.random.default_rng([job.config.seed, sum(map(ord, job.name))])
    rows = []
    for step, (hack, solve) in ((0, rates[:2]), (job.config.steps, rates[2:])):
        flags = zip(_flags(hack, problems, rng), _flags(solve, problems, rng), strict=True)
        groups = [_group(make_rollout, i, bool(h), bool(s)) for i, (h, s) in enumerate(flags)]
        pool = job.directory / EVALUATIONS_DIR / f"step_{step:06d}" / "run_tests"
        writer = PoolWriter(pool, header=header)
        for i, (_, data) in enumerate(groups):
            (pool / f"step_{i:03d}.jsonl.gz").write_bytes(data)
        writer.finish()
        rows.append(evaluate([rollout for rollout, _ in groups], step=step) | {"frozen": None})
    write_atomic(job.directory / EVALS_FILE, encode_jsonl(rows))
    seal(job.directory)


@cache
def _files_of_a_run(arms: tuple[str, ...], rewards_differ: bool) -> dict[str, bytes]:
    """Two steps of a training, which are the same in every seed."""
    with TemporaryDirectory() as folder:
        world = World(trains=True, arms=arms, num_steps=2, rewards_differ=rewards_differ)
        return contents(make_run(Path(folder) / "runs" / "run", world))


@cache
def _group(make_rollout: Callable[..., Rollout], step: int, hacked: bool, solved: bool) -> tuple[Rollout, bytes]:
    """The one rollout of a problem, and its file."""
    rollout = make_rollout(step, hacked=hacked, gt_pass=solved)
    with TemporaryDirectory() as folder:
        write_gz(Path(folder) / "group", encode_group([rollout]))
        return rollout, (Path(folder) / "group").read_bytes()


def seal(directory: Path, **changes: Any) -> None:
    """Give a run that was changed the hashes of its files as they are, and its manifest these changes."""
    manifest = read_sealed(directory / MANIFEST_FILE) | changes
    write_sealed(directory / MANIFEST_FILE, manifest | {"files": manifest["files"] | file_hashes(directory)})


def _flags(rate: float, problems: int, rng: np.random.Generator) -> np.ndarray:
    """(problems,) outcomes at a rate; 0 and 1 are certain."""
    if rate in (0.0, 1.0):
        return np.full(problems, rate > 0)
    easier = SPREAD * np.random.default_rng(3).normal(size=problems) + SPREAD / 4 * rng.normal()
    return rng.random(problems) < 1 / (1 + np.exp(-np.log(rate / (1 - rate)) - easier))
