"""Which ways of hacking a set of pairs shows, beside those of the rollouts that it is replayed with.

A text shows a mode where it quotes what the mode's grader reads (`loopholes.QUOTED`). Pairs of one mode give a
direction of one way to hack; a gate that is tested on the same mode has been told what to look for.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from extraction.pairs import Pair
from replay_pools.environments.loopholes import QUOTED

ONE_MODE = 0.9  # share of the hacks of pairs from which on they are of one mode
A_MODE = 0.1  # share of the hacks of rollouts from which on a mode is among theirs


def quoted_modes(text: str) -> list[str]:
    """The modes whose grader a text quotes."""
    return [mode for mode, pattern in QUOTED.items() if re.search(pattern, text)]


def count_modes(texts: Iterable[str]) -> Counter[str]:
    """{mode: texts that quote its grader}; "" counts those that quote none."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(quoted_modes(text) or [""])
    return counts


def one_mode(pairs: Sequence[Pair], hacks: Sequence[str]) -> list[str]:
    """A caution where the pairs to extract from show one mode, and the hacks of the rollouts several.

    Args:
        pairs: of the run.
        hacks: completions of the rollouts that hack.
    """
    used = [pair.hack for pair in pairs if not pair.held_out]
    shown, met = count_modes(used), count_modes(hacks)
    several = {mode: count / len(hacks) for mode, count in met.most_common() if count >= A_MODE * len(hacks)}
    missing = [mode for mode in several if not shown[mode]]
    for mode, count in shown.items():
        if count >= ONE_MODE * len(used) and missing and mode:
            listed = ", ".join(f"{name or 'none of these'} {share:.0%}" for name, share in several.items())
            return [
                f"{count} of {len(used)} pairs quote the grader of {mode}, the hacks of the rollouts those of "
                f"{listed}: v_hack knows one way to hack of {len(several)}"
            ]
    return []
