"""Which pairs are rollouts of the pools that they are to be measured on: such a measurement finds itself.

Texts are compared by their words and signs, so that spaces and case make no difference. A side of a pair is a rollout
where both answer one task (the words of one prompt stand in the other) and are nearly one text: a Jaccard index of
NEARLY of their runs of SHINGLE words (Broder 1997). Or where they are one text of LONG words, whatever was asked.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from extraction.pairs import Pair
from replay_pools.rollout import Rollout

SHINGLE = 3  # words
NEARLY, LONG = 0.8, 40
_WORD = re.compile(r"\w+|[^\w\s]")
Runs = frozenset[tuple[str, ...]]


def circular_pairs(pairs: Sequence[Pair], rollouts: Iterable[Rollout]) -> dict[int, list[Rollout]]:
    """{position of a pair: the rollouts that one of its sides is, verbatim or nearly}; pairs without any are left out.

    Time and memory are linear in the texts, but for rollouts that share runs with many pairs.
    """
    sides = [(i, _words(side)) for i, pair in enumerate(pairs) for side in (pair.hack, pair.clean)]
    runs = [_runs(words) for _, words in sides]
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, of_side in enumerate(runs):
        for run in of_side:
            holders[run].append(number)
    tasks = [_task(pair.messages) for pair in pairs]
    copies: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        words = _words(rollout.completion)
        in_rollout = _runs(words)
        shared = Counter(number for run in in_rollout for number in holders.get(run, ()))
        for number, count in shared.items():
            i, side = sides[number]
            if count < NEARLY * (len(in_rollout) + len(runs[number]) - count):
                continue
            task = _task(rollout.messages)
            if task in tasks[i] or tasks[i] in task or (side == words and len(words) >= LONG):
                rows = copies.setdefault(i, [])
                rows += [rollout] if not rows or rows[-1] is not rollout else []
    return dict(sorted(copies.items()))


def _task(messages: Sequence[dict[str, str]]) -> str:
    """The words of what was asked last."""
    return f" {' '.join(_words(messages[-1]['content']))} "


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _runs(words: Sequence[str]) -> Runs:
    """Every run of SHINGLE words; of a shorter text the whole of it."""
    return frozenset(tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1)))
