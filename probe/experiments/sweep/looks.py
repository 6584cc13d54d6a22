"""What the looks of a sweep mean for its verdict: a criterion that was looked at k times is not judged as if once.

The stop rules spend the type-I error over the looks (`stopping`), so that the primary criterion is decided where the
last look separates it at the level left to that look, and not where a 95% interval of the same data does. Outcomes of
the arms are judged by intervals of that level too: whatever a look saw, all arms of the sweep went on or stopped by it.
"""

from collections.abc import Sequence
from pathlib import Path

from scipy import stats

from probe.experiments.spec.jobs import read_state
from probe.experiments.spec.types import Spec
from probe.experiments.sweep.stopping import Look, boundaries
from probe.settings.words import Verdict


def read_looks(spec: Spec, out_dir: Path) -> list[Look]:
    """The looks that the sweep of this very spec has taken, in order."""
    return [Look(**look) for look in read_state(spec, out_dir).get("looks", [])]


def after_looks(verdict: Verdict, why: str, looks: list[Look]) -> tuple[Verdict, str]:
    """The verdict of the primary criterion, INCONCLUSIVE where the last look does not separate it, and the reason."""
    if not looks or verdict not in ("PASS", "FAIL") or looks[-1].action == "separated":
        return verdict, why
    last = looks[-1]
    p = "no variance" if last.p is None else f"p {last.p:.2g}"
    return (
        "INCONCLUSIVE",
        f"looked at {_after(looks)}: {p} does not reach the level {last.level:.2g} left to the last; {why}",
    )


def level_left(looks: Sequence[Look], alpha: float) -> float:
    """Of an error of `alpha` over all looks, two-sided, what is left to the last; all of it without a look."""
    # A block without a value of the primary is looked past: the number of values stays.
    counts = sorted({look.num_blocks for look in looks})
    if not counts:
        return alpha
    bounds = boundaries(tuple(count / looks[0].planned for count in counts), alpha)
    return float(2 * stats.norm.sf(bounds[-1]))


def looks_caution(looks: list[Look]) -> list[str]:
    """A caution that names the looks; none without any."""
    if not looks:
        return []
    last = looks[-1]
    sentence = f"LOOKED: the primary criterion was looked at {_after(looks)}, the last at level {last.level:.2g}"
    if last.action == "separated" and last.num_blocks < last.planned:
        sentence += "; it ended early because it separated, and such an effect is too large on average"
    return [sentence]


def _after(looks: list[Look]) -> str:
    blocks = ", ".join(str(look.num_blocks) for look in looks)
    return f"{len(looks)} times, after {blocks} of {looks[-1].planned} blocks"
