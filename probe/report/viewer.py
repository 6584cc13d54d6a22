"""The rollouts of a page as one JSON object, which `page.js` searches, sorts and draws. Torch-free.

{"runs": [{name, largest, scale}, ...], "rows": [row, ...]}
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from probe.report.evidence import RunRollouts, ShownRollout, to_read_first
from probe.report.facts import LABELS, facts_of, gist_of, question_of, tags_of
from replay_pools.base.files import dump_json
from replay_pools.base.terminal import visible
from replay_pools.rollout import runs_of

MOST_ROLLOUTS = 200  # in a page; more are in the pools, which `probe show` prints
SNIPPET = 400  # characters of a rollout in its row
SHARE_UNIT = 1e-5  # the page stores shares as integer multiples; page.js multiplies them back


def viewer_data(rollouts_by_run: Sequence[RunRollouts]) -> tuple[str, int, float | None]:
    """Encode the rollouts to read first of every run, an equal number of each, sorted by step and sample.

    Returns (JSON, number of the included rollouts, the share drawn in full colour or None without shares).
    """
    runs, rows, scales = [], [], []
    for number, (name, shown, _) in enumerate(rollouts_by_run):
        chosen = to_read_first(shown)[: max(MOST_ROLLOUTS // len(rollouts_by_run), 1)]
        scale = _largest_share(chosen)
        largest = max((abs(one.cosine) for one in chosen), default=0.0) or 1.0
        units = None if scale is None else round(scale / SHARE_UNIT)
        runs.append({"name": visible(name), "largest": largest, "scale": units})
        rows += [_row(one, number) for one in sorted(chosen, key=lambda one: (one.sample.step, one.sample.sample_id))]
        scales += [] if scale is None else [scale]
    # The JSON has no `<`, so no text can close the script element.
    json = dump_json({"runs": runs, "rows": rows}).replace(b"<", b"\\u003c").decode()
    return json, len(rows), max(scales, default=None)


def _row(shown: ShownRollout, run: int) -> dict[str, Any]:
    """Return one rollout as a row, with invisible characters escaped."""
    sample, rollout, record = shown.sample, shown.rollout, shown.tokens
    prompt = _text(rollout.prompt, *((record.prompt_chars, record.prompt) if record is not None else (None, None)))
    return {
        "run": run,
        "anchor": shown.anchor,
        "step": sample.step,
        "sample": sample.sample_id,
        "source": visible(sample.src_pool),
        "problem": visible(rollout.problem_id),
        "label": LABELS[sample.hacked],
        "tags": [visible(tag) for tag in tags_of(rollout)],
        "reward": sample.reward,
        "advantage": round(sample.advantage, 4),
        "cosine": None if sample.cos_S_contrib is None else round(sample.cos_S_contrib, 5),
        "tokens": sample.comp_len,
        "question": visible(question_of(rollout)),
        "gist": visible(gist_of(rollout, "\n")[:SNIPPET]),
        "prompt": prompt,
        "turns": [*_turns(shown)],
        "facts": [[name, visible(sentence)] for name, sentence in facts_of(rollout, sample)],
    }


def _turns(shown: ShownRollout) -> Iterator[dict[str, Any]]:
    """Yield the turns of a completion; `by` is the policy, or the tool or user who answers it."""
    rollout, record = shown.rollout, shown.tokens
    mask = rollout.completion_mask
    runs = [(0, rollout.comp_len)] if mask is None or rollout.turn_chars is None else runs_of(mask)
    for (is_sampled, text), (start, stop) in zip(rollout.turns, runs, strict=True):
        chars = shares = None
        if record is not None and is_sampled and record.completion_chars and record.completion:
            chars, shares = record.completion_chars[start:stop], record.completion[start:stop]
        yield {"by": "policy" if is_sampled else "tool or user", "count": stop - start, **_text(text, chars, shares)}


def _text(text: str, chars: Sequence[int] | None, shares: Sequence[float] | None) -> dict[str, Any]:
    """Return a text; with shares, also length and share of every token, as integers."""
    if chars is None or shares is None:
        return {"text": visible(text)}
    # Measure tokens as shown in the page, where invisible characters become longer escapes.
    ends = accumulate(chars, initial=0)
    lengths = [len(visible(text[start:end])) for start, end in pairwise(ends)]
    return {"text": visible(text), "chars": lengths, "shares": [round(share / SHARE_UNIT) for share in shares]}


def _largest_share(shown: Sequence[ShownRollout]) -> float | None:
    """Return the share drawn in full colour: the 99th percentile of |share| over all tokens; None without shares."""
    records = [one.tokens for one in shown if one.tokens is not None]
    shares = [abs(share) for one in records for share in (*(one.prompt or ()), *(one.completion or ()))]
    # page.js divides by this share, so it is at least one unit.
    return max(float(np.quantile(shares, 0.99)), SHARE_UNIT) if shares else None
