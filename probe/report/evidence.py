"""The rollouts of a report: texts from the pools, and the lines that push the update. Torch-free.

A token's share is its part of the rollout's cosine with the direction, recorded with `token_attribution`. The push of a
line sums its shares in a rollout, times the sign of the rollout's advantage (which gives the share of cos_S_contrib),
and averages over the rollouts of a prompt, then over prompts; a rollout without the line counts as 0.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from probe.analysis.analyze import Analysis
from probe.analysis.verdict.pools import read_pools
from probe.records.records import SampleRecord, TokenRecord
from probe.records.run import read_tokens
from probe.report.analyses import samples_of, slug
from replay_pools.rollout import Rollout

MOST_EVIDENCE = 4  # lines on the first screen, in each direction
LEAST_PUSH = 5e-5  # smaller pushes round to 0 in four decimals


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRollout:
    """One rollout with its measurements."""

    anchor: str  # its id in the page
    sample: SampleRecord  # from the measured arm
    rollout: Rollout
    tokens: TokenRecord | None  # token shares, if recorded

    @property
    def cosine(self) -> float:
        """Ranking score: cos_S_contrib, or cos_S_nll if A = 0."""
        if self.sample.cos_S_contrib is not None:
            return self.sample.cos_S_contrib
        return self.sample.cos_S_nll or 0.0


# (name of the run, its rollouts with readable texts, one sentence for each pool without texts: the reason)
RunRollouts = tuple[str, list[ShownRollout], list[str]]


def load_rollouts(analysis: Analysis) -> RunRollouts:
    """Return the rollouts of the measured arm, without texts of pools that were moved or changed after the run.

    Raises:
        InputError: token files do not match the manifest.
    """
    run = analysis.given
    stored, unread = read_pools(run)
    missing = [f"The texts of pool {name} are not shown. {reason}" for name, reason in unread.items()]
    token_records = read_tokens(run.path, run.manifest)
    shown = []
    for sample in samples_of(analysis):
        rollout = stored.get((sample.src_pool, sample.src_step, sample.src_sample))
        if rollout is None:
            continue
        record = token_records.get((sample.step, sample.sample_id))
        # A run records token shares only for one arm under one condition.
        whose = (sample.arm, sample.condition)
        if record is not None and (record.completion is None or (record.arm, record.condition) != whose):
            record = None
        place = f"r-{slug(analysis.run)}-{sample.step}-{sample.sample_id}"
        shown.append(ShownRollout(anchor=place, sample=sample, rollout=rollout, tokens=record))
    return run.path.name, shown, missing


def to_read_first(shown: Iterable[ShownRollout]) -> list[ShownRollout]:
    """Sort by recorded token shares, then |cosine|, largest first, with (source, hacked) groups in alternation."""
    buckets: dict[tuple[str, bool | None], list[ShownRollout]] = {}
    for rollout in sorted(shown, key=lambda rollout: (rollout.tokens is None, -abs(rollout.cosine))):
        buckets.setdefault((rollout.sample.src_pool, rollout.sample.hacked), []).append(rollout)
    longest = max(map(len, buckets.values()), default=0)
    return [bucket[i] for i in range(longest) for bucket in buckets.values() if i < len(bucket)]


def line_shares(rollout: Rollout, tokens: TokenRecord) -> list[tuple[str, float | None]]:
    """Return (line, share) of every line, turn by turn; a token belongs to the line in which it begins.

    Lines of tools and users have the share None. End-of-turn tokens have no text and no line.
    """
    rows: list[tuple[str, float | None]] = []
    pieces = _pieces(rollout, tokens)
    for is_sampled, text in rollout.turns:
        lines = text.split("\n")
        shares, number, left = [0.0] * len(lines), 0, len(text)
        while left > 0:
            piece, share = next(pieces)
            shares[min(number, len(lines) - 1)] += share
            number, left = number + piece.count("\n"), left - len(piece)
        rows += zip(lines, shares if is_sampled else [None] * len(lines), strict=True)
    return rows


def _pieces(rollout: Rollout, tokens: TokenRecord) -> Iterator[tuple[str, float]]:
    """Yield (text, share) for every completion token with a text."""
    start = 0
    for length, share in zip(tokens.completion_chars or (), tokens.completion or (), strict=True):
        if length:
            yield rollout.completion[start : start + length], share
        start += length


def pushes(shown: Sequence[ShownRollout]) -> list[dict[str, Any]]:
    """Return the lines of the policy with their pushes, occurrences and prompts, sorted from toward the hack to away.

    Only rollouts with an advantage and known token texts count. If there are several prompts, a line in only one of
    them is left out, because it says more about the prompt than about the line.
    """
    by_prompt: dict[str, list[tuple[ShownRollout, TokenRecord]]] = {}
    for rollout in shown:
        if rollout.sample.advantage and rollout.tokens is not None and rollout.tokens.completion_chars:
            by_prompt.setdefault(rollout.sample.problem_id, []).append((rollout, rollout.tokens))
    push: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    num_prompts: Counter[str] = Counter()
    for rollouts in by_prompt.values():
        of_prompt = set()
        for rollout, tokens in rollouts:
            sign = 1 if rollout.sample.advantage > 0 else -1
            for line, share in line_shares(rollout.rollout, tokens):
                if share is not None and (text := line.strip()):
                    push[text] += sign * share / len(rollouts) / len(by_prompt)
                    count[text] += 1
                    of_prompt.add(text)
        num_prompts.update(of_prompt)
    least = min(2, len(by_prompt))
    ranked = [
        {"text": text, "number": push[text], "times": count[text], "num_prompts": num_prompts[text]}
        for text in push
        if num_prompts[text] >= least
    ]
    return sorted(ranked, key=lambda row: (-row["number"], row["text"]))


def evidence(shown: Sequence[ShownRollout]) -> dict[str, Any] | None:
    """Return the lines with the largest pushes, for `verdict.html`; None if no tokens have shares."""
    num_split = sum(one.tokens is not None for one in shown)
    rows = [row for row in pushes(shown) if abs(row["number"]) > LEAST_PUSH]
    if not rows:
        return None
    toward = [row for row in rows if row["number"] > 0][:MOST_EVIDENCE]
    away = [row for row in reversed(rows) if row["number"] < 0][:MOST_EVIDENCE]
    what = "Parts of the update's cosine with v_hack; a click searches for the line."
    note = f"{what} From the {num_split} of {len(shown)} rollouts whose tokens have shares."
    return {
        "lists": {"Lines that push toward the hack": toward, "Lines that push away from the hack": away},
        "note": note,
    }
