"""The commands that a spec asks for: pools first, then conditions x arms x seeds in blocks of one seed.

Every job is an ordinary `probe` command that can be repeated by hand, and resumes by itself.
"""

from dataclasses import dataclass
from pathlib import Path

from probe.prereg import preregistered, spec_status
from probe.runs import CONFIG_FILE, MANIFEST_FILE, STEPS_FILE
from probe.spec import Condition, Option, Spec, SpecStatus
from replay_pools.files import read_json

# The fields of probe.objective.Objective, which `probe replay --condition` takes: conditions that differ in these alone
# are evaluated side by side in one pass.
ONE_PASS = (
    *("loss_type", "max_completion_length", "advantage_estimator", "scale_rewards", "advantage_eps", "min_group_std"),
    *("advantage_clip", "gtpo_beta", "sepa_lambda", "hicra_alpha", "top_entropy_quantile"),
    *("old_logprobs", "importance_sampling_level", "epsilon", "epsilon_high", "delta"),
    *("reference", "kl_estimator", "beta", "entropy_coef"),
)
NORMALISER = ("loss_type", "max_completion_length")  # v_hack has that of its run: with another one there are no nulls


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command of a sweep; `seed` is None for a pool that is generated before the first block."""

    name: str
    args: tuple[str, ...]  # after `probe`
    directory: Path  # complete when its manifest is there
    seed: int | None = None
    conditions: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do."""
        return (self.directory / MANIFEST_FILE).is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A run that a spec asks for, and what is there of it."""

    job: Job
    complete: bool
    spec_status: SpecStatus | None  # None: nothing is there


def pool_jobs(spec: Spec, out_dir: Path) -> list[Job]:
    """The pools to generate first."""
    return [
        Job(
            name=f"pool-{pool.name}",
            args=("pool", "generate", "--name", pool.name, "--out", str(out_dir), *flags(pool.options)),
            directory=out_dir / "pools" / pool.name,
        )
        for pool in spec.pools
    ]


def block(spec: Spec, seed: int, out_dir: Path) -> list[Job]:
    """The runs of one seed. Frozen weights: one pass serves all arms and conditions. Training: each is a run."""
    return [
        _job(spec, conditions, arms, seed, out_dir)
        for conditions in _passes(spec)
        for arms in ([spec.arms] if frozen(spec, conditions[0]) else [(arm,) for arm in spec.arms])
    ]


def _passes(spec: Spec) -> list[list[Condition]]:
    """The conditions, those that one pass serves together."""
    passes: dict[str, list[Condition]] = {}
    for condition in spec.conditions:
        own = spec.options(condition)
        others = {name: value for name, value in own.items() if name not in ONE_PASS or name in NORMALISER}
        key = repr(sorted(others.items())) if frozen(spec, condition) else condition.name
        passes.setdefault(key, []).append(condition)
    return list(passes.values())


def runs_of(spec: Spec, out_dir: Path) -> list[SweepRun]:
    """Every run that the spec asks for, in the order of the sweep, with what is on disk."""
    return [
        SweepRun(job=job, complete=job.complete, spec_status=_status(job, spec))
        for seed in spec.seeds
        for job in block(spec, seed, out_dir)
    ]


def flags(options: dict[str, Option]) -> list[str]:
    """Options as command-line arguments: true is a flag, false leaves it off, lists are joined by commas."""
    arguments: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments += [option] if value else []
        else:
            arguments += [option, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return arguments


def _job(spec: Spec, conditions: list[Condition], arms: tuple[str, ...], seed: int, out_dir: Path) -> Job:
    """The run of one pass and seed in some arms, named after its first condition unless it holds several and all."""
    first = [] if len(conditions) == len(spec.conditions) > 1 else [conditions[0].name]
    name = "-".join([spec.name, *first, *(arms if arms != spec.arms else ()), f"seed{seed}"])
    own = ("--name", name, "--out", str(out_dir), "--arm", ",".join(arms), "--seed", str(seed))
    mark = ("--preregistered", preregistered(spec))
    options = spec.options(conditions[0])
    shared = flags({name: value for name, value in options.items() if name not in ONE_PASS})
    return Job(
        name=name,
        args=(spec.base.verb, *own, *mark, *shared, *(part for c in conditions for part in _condition(spec, c))),
        directory=out_dir / "runs" / name,
        seed=seed,
        conditions=tuple(condition.name for condition in conditions),
        arms=arms,
    )


def _condition(spec: Spec, condition: Condition) -> tuple[str, str]:
    """`--condition NAME:key=value,...` with every setting of the loss that the base or the condition names."""
    settings = [f"{name}={value}" for name, value in spec.options(condition).items() if name in ONE_PASS]
    return "--condition", condition.name + (f":{','.join(settings)}" if settings else "")


def frozen(spec: Spec, condition: Condition) -> bool:
    """Whether nothing is trained: all arms then see the same gradients, and one pass serves them all."""
    return spec.base.verb == "replay" and spec.options(condition).get("lr", 0) == 0


def _status(job: Job, spec: Spec) -> SpecStatus | None:
    """None before the first step: a run that was refused its input leaves nothing that counts."""
    started = (job.directory / STEPS_FILE).is_file()
    return spec_status(read_json(job.directory / CONFIG_FILE), spec) if started else None
