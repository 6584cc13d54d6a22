"""The rollouts of a report: texts from the pools, token shares, and the strings that push the update. Torch-free.

A token's share is its part of the rollout's cosine with the direction, recorded with `token_attribution`. To get the
push of a string (a token or a line), sum its shares in a rollout, multiply by the sign of the rollout's advantage
(which gives the share of cos_S_contrib), and average over the rollouts of a prompt, then over prompts; a rollout
without the string counts as 0. The pushes of all tokens of prompts and completions therefore add up to the mean
cos_S_contrib. A string may rank high only because it is frequent, so tables also show its number of prompts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import TextTable, short
from probe.analysis.verdict.pools import read_pools
from probe.records.records import SampleRecord, TokenRecord
from probe.records.run import Run, read_tokens
from probe.report.facts import gist_of, signed
from probe.report.inputs import samples_of, slug
from replay_pools.rollout import Rollout

MOST_STRINGS = 10  # in each table
MOST_EVIDENCE = 4  # on the first screen, in each direction
LEAST_PUSH = 5e-5  # smaller pushes round to 0 in a table's four decimals
LONGEST_STRING = 120  # characters
SIDES = ("toward the hack", "away from the hack")
NO_SHARES = (
    "By rollout: shares of tokens, which tell lines and tokens apart, come with --set token_attribution=N (steps)."
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRollouts:
    """The rollouts of one run that have readable texts."""

    run: Run
    anchor: str  # prefix of its rollouts' ids in the page
    shown: list[ShownRollout]
    missing: list[str]  # one sentence for each pool without texts: the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """The push of one string of the completions toward the hack."""

    text: str
    push: float
    count: int  # occurrences
    num_prompts: int  # prompts with the string


def load_rollouts(analysis: Analysis) -> RunRollouts:
    """Return the rollouts of the measured arm, without texts of pools that were moved or changed after the run.

    Raises:
        InputError: token files do not match the manifest.
    """
    run = analysis.given
    stored, unread = read_pools(run)
    missing = [f"The texts of pool {name} are not shown. {reason}" for name, reason in unread.items()]
    anchor = f"r-{slug(analysis.run)}"
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
        place = f"{anchor}-{sample.step}-{sample.sample_id}"
        shown.append(ShownRollout(anchor=place, sample=sample, rollout=rollout, tokens=record))
    return RunRollouts(run=run, anchor=anchor, shown=shown, missing=missing)


def largest_cosines_first(shown: Iterable[ShownRollout]) -> list[ShownRollout]:
    """Sort by |cosine|, largest first, alternating between (source, hacked) buckets; used if not all rollouts fit."""
    buckets: dict[tuple[str, bool | None], list[ShownRollout]] = {}
    for rollout in sorted(shown, key=lambda rollout: -abs(rollout.cosine)):
        buckets.setdefault((rollout.sample.src_pool, rollout.sample.hacked), []).append(rollout)
    longest = max(map(len, buckets.values()), default=0)
    return [bucket[i] for i in range(longest) for bucket in buckets.values() if i < len(bucket)]


def tokens_of(rollout: Rollout, tokens: TokenRecord) -> Iterator[tuple[str, float]]:
    """Return (text, share) of every sampled token with a text; end-of-turn tokens have none."""
    return ((text, share) for text, share, is_sampled in _all_tokens(rollout, tokens) if is_sampled)


def _all_tokens(rollout: Rollout, tokens: TokenRecord) -> Iterator[tuple[str, float, bool]]:
    """Yield (text, share, is sampled) for every completion token with a text."""
    start, mask = 0, rollout.completion_mask or [True] * rollout.comp_len
    for length, share, is_sampled in zip(tokens.completion_chars or (), tokens.completion or (), mask, strict=True):
        if length:
            yield rollout.completion[start : start + length], share, is_sampled
        start += length


def line_shares(rollout: Rollout, tokens: TokenRecord) -> list[tuple[str, float | None]]:
    """Return (line, share) of every line, turn by turn; a token belongs to the line in which it begins.

    Lines of tools and users have the share None.
    """
    rows: list[tuple[str, float | None]] = []
    pieces = _all_tokens(rollout, tokens)
    for is_sampled, text in rollout.turns:
        lines = text.split("\n")
        shares, number, left = [0.0] * len(lines), 0, len(text)
        while left > 0:
            piece, share, _ = next(pieces)
            shares[min(number, len(lines) - 1)] += share
            number, left = number + piece.count("\n"), left - len(piece)
        rows += zip(lines, shares if is_sampled else [None] * len(lines), strict=True)
    return rows


def lines_of(rollout: Rollout, tokens: TokenRecord) -> Iterator[tuple[str, float]]:
    """Return (text, share) of every non-blank line of the policy, without surrounding white space."""
    rows = line_shares(rollout, tokens)
    return ((line.strip(), share) for line, share in rows if share is not None and line.strip())


def pushes(shown: Sequence[ShownRollout], *, by_line: bool) -> list[Push]:
    """Return the pushes of all tokens (or lines), sorted from toward the hack to away from it.

    Only rollouts with an advantage and known token texts count. If there are several prompts, a string in only one of
    them is left out, because it says more about the prompt than about the string.
    """
    by_prompt: dict[str, list[tuple[ShownRollout, TokenRecord]]] = {}
    for rollout in shown:
        if rollout.sample.advantage and rollout.tokens is not None and rollout.tokens.completion_chars:
            by_prompt.setdefault(rollout.sample.problem_id, []).append((rollout, rollout.tokens))
    strings_of = lines_of if by_line else tokens_of
    push: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    num_prompts: Counter[str] = Counter()
    for rollouts in by_prompt.values():
        texts_of_prompt = set()
        for rollout, tokens in rollouts:
            sign = 1 if rollout.sample.advantage > 0 else -1
            for text, share in strings_of(rollout.rollout, tokens):
                push[text] += sign * share / len(rollouts) / len(by_prompt)
                count[text] += 1
                texts_of_prompt.add(text)
        num_prompts.update(texts_of_prompt)
    least = min(2, len(by_prompt))
    ranked = [
        Push(text=text, push=push[text], count=count[text], num_prompts=num_prompts[text])
        for text in push
        if num_prompts[text] >= least
    ]
    return sorted(ranked, key=lambda row: (-row.push, row.text))


def string_tables(shown: Sequence[ShownRollout]) -> list[TextTable]:
    """Return tables of the strings with the largest pushes in both directions, by line and by token, if not empty."""
    tables = []
    for name, by_line in (("lines", True), ("tokens", False)):
        for side, rows in zip(SIDES, _both_sides(shown, by_line=by_line), strict=True):
            cells = []
            for row in rows[:MOST_STRINGS]:
                # Newlines and tabs are always made visible, spaces only in a string of spaces.
                text = row.text.replace("\n", "\u21b5").replace("\t", "\u21e5")
                text = text if row.text.strip() else text.replace(" ", "\u00b7")
                cells.append((short(text, LONGEST_STRING), signed(row.push, 4), str(row.count), str(row.num_prompts)))
            title, header = f"{name.capitalize()} that push the update {side}", ("string", "push", "times", "prompts")
            tables.append(TextTable(name=f"{name}-{side}", title=title, header=header, rows=cells))
    return [table for table in tables if table.rows]


def evidence(run: RunRollouts, anchors: set[str]) -> dict[str, Any] | None:
    """Return the lines with the largest pushes, else the rollouts with the largest cosines, for `verdict.html`.

    Args:
        run: rollouts of a run; without any, the result is None.
        anchors: anchors of the rollouts shown in the page; others get no link.
    """
    if not run.shown:
        return None
    num_split = sum(shown.tokens is not None for shown in run.shown)
    kind, note, digits = "Lines", f"From the {num_split} of {len(run.shown)} rollouts whose tokens have shares.", 4
    sides = []
    for rows in _both_sides(run.shown, by_line=True):
        side = []
        for row in rows:
            tip = f"{row.count} times in {row.num_prompts} prompts: show the rollouts"
            side.append({"text": row.text, "search": row.text, "tip": tip, "number": row.push})
        sides.append(side)
    if not any(sides):
        kind, note, digits = "Rollouts", NO_SHARES, 3
        ranked = []
        for shown in sorted(run.shown, key=lambda shown: -shown.cosine):
            anchor = shown.anchor if shown.anchor in anchors else None
            ranked.append({"text": gist_of(shown.rollout), "search": None, "anchor": anchor, "number": shown.cosine})
        sides = [[row for row in ranked if row["number"] > 0], [row for row in ranked[::-1] if row["number"] < 0]]
    lists = {f"{kind} that push {side}": rows[:MOST_EVIDENCE] for side, rows in zip(SIDES, sides, strict=True)}
    return {"lists": lists, "note": note, "digits": digits}


def _both_sides(shown: Sequence[ShownRollout], *, by_line: bool) -> tuple[list[Push], list[Push]]:
    """Return the strings that push toward the hack and away from it, strongest first."""
    ranked = pushes(shown, by_line=by_line)
    hackward = [row for row in ranked if row.push > LEAST_PUSH]
    return hackward, [row for row in reversed(ranked) if row.push < -LEAST_PUSH]
