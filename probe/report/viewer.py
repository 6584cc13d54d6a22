"""The rollouts of a page as one JSON object, which `page.js` searches, sorts and draws. Torch-free.

    {"strings": [text, ...], "runs": [{name, anchor, largest, scale}, ...], "rows": [row, ...]}

Prompts, grades and token lengths repeat between rollouts, so each text is stored once and rows hold its number. This
fits the thousands of rollouts of a training into one page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from typing import Any

import numpy as np

from probe.report.facts import facts_of, label_of, question_of, signed, tags_of
from probe.report.rollouts import RunRollouts, ShownRollout, largest_cosines_first
from replay_pools.base.files import dump_json
from replay_pools.base.terminal import visible

SHARE_UNIT = 1e-5  # the page stores shares as integer multiples; page.js multiplies them back


class Strings:
    """Numbered texts, each stored once, with invisible characters escaped."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text; store a new text."""
        shown = visible(text)
        if shown not in self._numbers:
            self._numbers[shown] = len(self.texts)
            self.texts.append(shown)
        return self._numbers[shown]

    def forget(self, count: int) -> None:
        """Drop all texts after the first `count`."""
        for text in self.texts[count:]:
            del self._numbers[text]
        del self.texts[count:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerData:
    """The content of the viewer."""

    json: str
    anchors: set[str]  # of the included rollouts
    largest_share: float | None  # over all runs, drawn in full colour; None without shares


def viewer_data(rollouts_by_run: Sequence[RunRollouts], budget: int) -> ViewerData:
    """Encode the rollouts of all runs; if not all fit, the ones with the largest cosines.

    Args:
        rollouts_by_run: the rollouts of each run.
        budget: bytes of JSON, divided equally among runs.
    """
    strings = Strings()
    runs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    anchors: set[str] = set()
    scales = [_largest_share(run.shown) for run in rollouts_by_run]
    for number, (run, scale) in enumerate(zip(rollouts_by_run, scales, strict=True)):
        chosen = _choose(run.shown, number, strings, budget // len(rollouts_by_run))
        largest = max((abs(shown.cosine) for shown, _ in chosen), default=0.0) or 1.0
        runs.append(
            {
                "name": visible(run.run.path.name),
                "anchor": run.anchor,
                "largest": largest,
                "scale": None if scale is None else round(scale / SHARE_UNIT),
            }
        )
        anchors |= {shown.anchor for shown, _ in chosen}
        rows += [row for _, row in chosen]
    return ViewerData(
        # The JSON has no `<`, so no text can close the script element.
        json=_dump({"runs": runs, "rows": rows, "strings": strings.texts}).decode(),
        anchors=anchors,
        largest_share=max((scale for scale in scales if scale is not None), default=None),
    )


def _choose(
    shown: Sequence[ShownRollout], run: int, strings: Strings, budget: int
) -> list[tuple[ShownRollout, dict[str, Any]]]:
    """Return the rollouts with the largest cosines that fit into `budget` bytes, sorted by step and sample."""
    chosen, left = [], budget
    for rollout in largest_cosines_first(shown):
        before = len(strings.texts)
        row = _row(rollout, run, strings)
        left -= len(_dump(row)) + sum(len(_dump(text)) + 1 for text in strings.texts[before:]) + 1
        # Stop here: a later, smaller rollout might fit, but the result would skip a larger cosine.
        if left < 0:
            strings.forget(before)
            break
        chosen.append((rollout, row))
    return sorted(chosen, key=lambda pair: (pair[0].sample.step, pair[0].sample.sample_id))


def _row(shown: ShownRollout, run: int, strings: Strings) -> dict[str, Any]:
    """Return one rollout as a row, with texts as numbers of `strings`."""
    sample, rollout = shown.sample, shown.rollout
    facts = []
    for name, sentence in facts_of(rollout, sample):
        facts += [strings.number(name), strings.number(sentence)]
    return {
        "run": run,
        "step": sample.step,
        "sample": sample.sample_id,
        "source": strings.number(sample.src_pool),
        "problem": strings.number(rollout.problem_id),
        "label": label_of(sample.hacked),
        "tags": [strings.number(tag) for tag in tags_of(rollout)],
        "reward": sample.reward,
        "advantage": round(sample.advantage, 4),
        "cosine": None if sample.cos_S_contrib is None else round(sample.cos_S_contrib, 5),
        "tokens": sample.comp_len,
        "question": strings.number(question_of(rollout)),
        "prompt": _text(shown, "prompt", strings),
        "completion": _text(shown, "completion", strings),
        "answer": strings.number(rollout.answer),
        "facts": facts,
    }


def _text(shown: ShownRollout, part: str, strings: Strings) -> list[int]:
    """Return [title, text] of prompt or completion; with shares or several turns, add lengths and shares of its parts.

    A share is `x` in turns of tools and users, and `-` if none is recorded.
    """
    rollout, record = shown.rollout, shown.tokens
    text: str = getattr(rollout, part)
    chars = None if record is None else getattr(record, f"{part}_chars")
    shares = None if record is None else getattr(record, part)
    mask = rollout.completion_mask if part == "completion" else None
    count = rollout.plen if part == "prompt" else rollout.num_sampled
    own = sum(shares or ()) if mask is None else sum(compress(shares or (), mask))
    title = f"{part.capitalize()} ({count} tokens"
    title += "" if shares is None else f", {signed(own, 4)} of cos_S_nll"
    if mask is not None:
        title += f"; grey: {len(mask) - count} of a tool or a user"
        title += "" if shares is None else f", {signed(sum(shares) - own, 4)}"
    numbers = [strings.number(f"{title})"), strings.number(text)]
    units: list[int | str] = []
    if chars is not None and shares is not None:
        units = [round(share / SHARE_UNIT) for share in shares]
        if mask is not None:
            units = [unit if is_sampled else "x" for unit, is_sampled in zip(units, mask, strict=True)]
    elif mask is not None:
        chars = [len(turn) for _, turn in rollout.turns]
        units = ["-" if is_sampled else "x" for is_sampled, _ in rollout.turns]
    if units:
        assert chars is not None
        # Measure tokens as shown in the page, where invisible characters become longer escapes.
        ends = list(accumulate(chars, initial=0))
        lengths = [len(visible(text[start:end])) for start, end in pairwise(ends)]
        numbers += [strings.number(" ".join(map(str, values))) for values in (lengths, units)]
    return numbers


def _largest_share(shown: Sequence[ShownRollout]) -> float | None:
    """Return the share drawn in full colour: the 99th percentile of |share| over all tokens; None without shares."""
    shares: list[float] = []
    for rollout in shown:
        if rollout.tokens is not None:
            shares += [abs(share) for share in rollout.tokens.prompt or ()]
            shares += [abs(share) for share in rollout.tokens.completion or ()]
    # page.js divides by this share, so it is at least one unit.
    return max(float(np.quantile(shares, 0.99)), SHARE_UNIT) if shares else None


def _dump(value: Any) -> bytes:
    return dump_json(value).replace(b"<", b"\\u003c")
