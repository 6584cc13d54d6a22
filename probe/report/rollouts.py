"""The rollouts behind the records: texts from the pools, and shares of their tokens if recorded. No torch here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from probe.records.records import SampleRecord
from probe.records.run import ROLLOUTS_DIR, Run
from probe.records.tokens import TokenRecord, read_tokens
from probe.report.views import View, slug
from replay_pools.errors import InputError
from replay_pools.files import dump_json, sha256
from replay_pools.pool import Pool, open_pool
from replay_pools.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One rollout with what was measured on it."""

    anchor: str  # its id in the page
    sample: SampleRecord  # of the measured arm
    rollout: Rollout
    tokens: TokenRecord | None

    @property
    def cosine(self) -> float:
        """What it is ranked by: cos_S_contrib, or cos_S_nll where A = 0."""
        first, second = self.sample.cos_S_contrib, self.sample.cos_S_nll
        return first if first is not None else second or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """The rollouts of one run whose texts are there."""

    run: Run
    shown: list[Shown]
    missing: list[str]  # why texts of a pool are not there


def load_rollouts(view: View) -> Rollouts:
    """The rollouts of a view's measured arm. A pool that has moved or changed since is told, never guessed at."""
    stored, missing = _stored(view.run)
    tokens = read_tokens(view.run.path, view.run.manifest)
    shown = [
        Shown(
            anchor=f"r-{slug(view.analysis.run)}-{s.step}-{s.sample_id}",
            sample=s,
            rollout=stored[s.src_pool, s.src_step, s.src_sample],
            tokens=_own(tokens.get((s.step, s.sample_id)), s),
        )
        for s in view.samples
        if (s.src_pool, s.src_step, s.src_sample) in stored
    ]
    return Rollouts(run=view.run, shown=shown, missing=missing)


def telling(shown: Iterable[Shown]) -> list[Shown]:
    """Largest cosines first, the (source, hacked) buckets taking turns: what is shown when not all can be."""
    buckets: dict[tuple[str, bool], list[Shown]] = {}
    for one in sorted(shown, key=lambda one: -abs(one.cosine)):
        buckets.setdefault((one.sample.src_pool, one.sample.hacked), []).append(one)
    longest = max(map(len, buckets.values()), default=0)
    return [bucket[i] for i in range(longest) for bucket in buckets.values() if i < len(bucket)]


def _own(record: TokenRecord | None, sample: SampleRecord) -> TokenRecord | None:
    """The shares, if they are of this arm and condition and there are any."""
    if record is None or record.completion is None:
        return None
    return record if (record.arm, record.condition) == (sample.arm, sample.condition) else None


def _stored(run: Run) -> tuple[dict[tuple[str, int, int], Rollout], list[str]]:
    """({(pool, step, sample): rollout}, why pools are missing)."""
    found: dict[tuple[str, int, int], Rollout] = {}
    missing = []
    for name, path, expected in _pools(run):
        try:
            pool = _open(path, expected)
            found |= {(name, r.step, r.sample_id): r for group in pool.steps for r in group}
        except InputError as error:
            missing.append(f"The texts of pool {name} are not shown. {error}")
    for name in sorted({s.src_pool for s in run.samples} - {name for name, _, _ in _pools(run)}):
        missing.append(f"The texts of pool {name} are not shown. The run does not say where it is.")
    return found, missing


def _pools(run: Run) -> Sequence[tuple[str, Path, str | None]]:
    """(name, place, sha256 of its manifest) of the pools that a run read, and of the one that it wrote."""
    written = [(ROLLOUTS_DIR, run.path / ROLLOUTS_DIR, None)] if (run.path / ROLLOUTS_DIR).is_dir() else []
    return [*((p["name"], Path(p["path"]), p["manifest_sha256"]) for p in run.config.get("pools", ())), *written]


def _open(path: Path, expected: str | None) -> Pool:
    pool = open_pool(path)
    found = sha256(dump_json(pool.manifest))
    if expected not in (None, found):
        raise InputError(path, expected=f"the pool that the run read (manifest {str(expected)[:12]})", found=found[:12])
    return pool
