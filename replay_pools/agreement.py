"""How far two gradings of one pool agree, label by label, and the record that a regrade leaves of it.

    record = compare(old, new)                  a Regrade; `record.rows` has one Agreement a label
    write_regrade(out_dir, record)              OUT/regrades/SHA.json, where SHA names the old pool
    read_regrade(out_dir, sha)                  the same record; None before the pool was regraded

SHA is the hash by which a run names the pools that it read (`Pool.identity`). The record does not lie in the folder of
the pool, since that may be read-only and must not change. It holds nothing of the time or the place of the regrade: the
same regrade gives the same bytes, and a later one of the same pool replaces it.

To compare one more label: add it to LABELS, to INFERRED if no log records it, and to
`replay_pools.regrade.KEPT` if it needs the problems.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from replay_pools.pool import Pool
from replay_pools.rollout import LOGGED_GRADER, UNKNOWN, CodeRule, Rollout
from replay_pools.storage.files import read_sealed, write_sealed
from replay_pools.storage.tables import decode

REGRADES_DIR = "regrades"  # in OUT
REGRADE_SCHEMA = 1
LABELS = ("fmt_ok", "compiles", "passed", "gt_correct", "hacked", "exploited", "mechanism", "reward")
INFERRED = ("compiles", "passed", "exploited", "mechanism")  # in no log: read off its reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One label of the old pool against the same label of the new one."""

    label: str
    n: int  # rollouts that were compared
    rate: float | None  # share of them with the same label; None when n is 0
    old_only: int  # rollouts with the label, a mechanism, or the higher reward in the old pool only
    new_only: int  # the same, in the new pool only


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """One grading of a pool: what was graded, by what, within which limits. None: not recorded."""

    pool: str  # name of the pool with its labels
    manifest_sha256: str  # as in `Pool.identity`
    version: str | None  # of the grader
    isolation: str | None
    code_rule: CodeRule
    cpu_s: int | None  # least limit of one execution, CPU seconds
    cpu_multiple: int | None  # limit of a problem over the CPU seconds of its canonical solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrade:
    """The labels of a pool against those of its regrade."""

    old: Grading
    new: Grading
    rows: list[Agreement]  # one a label of LABELS; n is 0 for labels that were kept or that the source never recorded
    kept: list[str]  # labels that were not graded again, the problems being unknown
    flaky: int | None  # rollouts whose two new gradings disagree; None when they were graded once
    without_label: int  # rollouts that could not be graded, the machine being too busy


def compare(old: Pool, new: Pool) -> Regrade:
    """The record of a regrade: `new` has the rollouts of `old` with new grades."""
    rollouts, kept = [*chain.from_iterable(new.steps)], new.manifest["regraded_from"]["kept"]
    flags = [rollout.grade.flaky for rollout in rollouts if rollout.labelled]
    both = zip(chain.from_iterable(old.steps), rollouts, strict=True)
    pairs = [(before, after) for before, after in both if is_judged(after)]
    return Regrade(
        old=_grading(old),
        new=_grading(new),
        rows=[_compare(label, [] if label in kept else pairs) for label in LABELS],
        kept=kept,
        flaky=None if None in flags else sum(map(bool, flags)),
        without_label=sum(not rollout.labelled for rollout in rollouts),
    )


def is_judged(rollout: Rollout) -> bool:
    """Whether a rollout of a regrade was graded again: one whose mode needs the problems keeps its logged labels."""
    return rollout.grade.isolation != UNKNOWN


def graded_code_rule(pool: Pool) -> CodeRule:
    """The rule by which the code of a pool's completions was found when they were graded; published logs joined all."""
    return pool.manifest["grader"].get("code_rule", "joined")


def write_regrade(out_dir: Path, record: Regrade) -> None:
    """Leave the record where `read_regrade` finds it."""
    write_sealed(_path(out_dir, record.old.manifest_sha256), {"schema": REGRADE_SCHEMA, **asdict(record)})


def read_regrade(out_dir: Path, manifest_sha256: str) -> Regrade | None:
    """The last regrade of the pool with this hash; None where there is none.

    Raises:
        InputError: a file that `write_regrade` did not write.
    """
    path = _path(out_dir, manifest_sha256)
    if not path.exists():
        return None
    row = read_sealed(path, REGRADE_SCHEMA, "delete it, and regrade the pool again")
    del row["schema"]
    return decode(Regrade, row, path)


def _path(out_dir: Path, manifest_sha256: str) -> Path:
    return out_dir / REGRADES_DIR / f"{manifest_sha256}.json"


def _grading(pool: Pool) -> Grading:
    grader = pool.manifest["grader"]
    return Grading(
        pool=pool.name,
        manifest_sha256=pool.identity()["manifest_sha256"],
        version=grader.get("version"),
        isolation=grader.get("isolation"),
        code_rule=graded_code_rule(pool),
        cpu_s=grader.get("cpu_s"),
        cpu_multiple=grader.get("cpu_multiple"),
    )


def _compare(label: str, pairs: Sequence[tuple[Rollout, Rollout]]) -> Agreement:
    """The agreement of one label over pairs of (old, new) rollout."""
    levels: list[tuple[float, float, bool]] = []  # before, after, whether they are the same
    for old, new in pairs:
        is_inferred = label in INFERRED and old.grade.grader == LOGGED_GRADER
        before, after = (
            rollout.reward if label == "reward" else getattr(rollout.grade, label) for rollout in (old, new)
        )
        if not is_inferred and old.labelled and new.labelled and before is not None and after is not None:
            levels.append((_level(before), _level(after), before == after))
    n = len(levels)
    return Agreement(
        label=label,
        n=n,
        rate=sum(same for _, _, same in levels) / n if n else None,
        # Two different mechanisms count as a disagreement, but in neither direction.
        old_only=sum(before > after for before, after, _ in levels),
        new_only=sum(after > before for before, after, _ in levels),
    )


def _level(value: bool | float | str) -> float:
    """A label as a number: any mechanism is more than none."""
    return float(value != "none" if isinstance(value, str) else value)
