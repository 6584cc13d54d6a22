"""The rollouts behind the records: texts from the pools, and shares of their tokens if recorded. No torch here.

A token's share is its part of the rollout's cosine with the direction. A string's push is the sum of its tokens' shares
in a rollout, times the sign of the rollout's advantage (the share of cos_S_contrib), as a mean over prompts of means
over their rollouts; 0 where it does not occur. So the pushes of all tokens of prompts and completions add up to the
mean cos_S_contrib. A frequent string can be first by being everywhere: the number of prompts is beside it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from probe.records.records import SampleRecord
from probe.records.run import ROLLOUTS_DIR, Run
from probe.records.tokens import TokenRecord, read_tokens
from probe.report.inputs import View, slug
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """One string of the completions."""

    text: str
    push: float
    count: int  # occurrences
    num_prompts: int  # in which it occurs


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


def tokens_of(one: Shown) -> Iterator[tuple[str, float]]:
    """(text, share) of every completion token that has a text."""
    start = 0
    assert one.tokens is not None
    for length, share in zip(one.tokens.completion_chars or (), one.tokens.completion or (), strict=True):
        if length:
            yield one.rollout.completion[start : start + length], share
        start += length


def lines_of(one: Shown) -> Iterator[tuple[str, float]]:
    """(text, share) of every line that is not blank; a token counts for the line in which it begins."""
    lines = one.rollout.completion.split("\n")
    shares, at = [0.0] * len(lines), 0
    for text, share in tokens_of(one):
        shares[at] += share
        at += text.count("\n")
    return ((line.strip(), share) for line, share in zip(lines, shares, strict=True) if line.strip())


def pushes(rows: Sequence[Shown], *, by_line: bool) -> list[Push]:
    """Tokens (or lines) of rollouts with an advantage and known token texts, the most hack-ward first.

    A string of one prompt alone says more about the prompt than about the string: it is left out where there are more.
    """
    known = [one for one in rows if one.sample.advantage and one.tokens is not None and one.tokens.completion_chars]
    by_prompt: dict[str, list[Shown]] = {}
    for one in known:
        by_prompt.setdefault(one.sample.problem_id, []).append(one)
    push: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    prompts: Counter[str] = Counter()
    for own in by_prompt.values():
        seen = set()
        for one in own:
            sign = 1 if one.sample.advantage > 0 else -1
            for text, share in (lines_of if by_line else tokens_of)(one):
                push[text] += sign * share / len(own) / len(by_prompt)
                count[text] += 1
                seen.add(text)
        prompts.update(seen)
    kept = [text for text in push if prompts[text] >= min(2, len(by_prompt))]
    found = [Push(text=t, push=push[t], count=count[t], num_prompts=prompts[t]) for t in kept]
    return sorted(found, key=lambda row: (-row.push, row.text))


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
