"""What the gate of every arm of a frozen replay removes to first order, its controls' as well: observed, no draws.

The quantities are those of `forecast`, summed over the steps as there: the share 1 - <g', h> / <g, h> of the progress
on held-out pairs (`margin`), on the paid hacks and on the paid honest solutions of the same group. Directions of
controls do not lie in the span of the pair gradients, so the run stores their products with pairs and samples, and
these are enough. Beside the shares stand the norm that is removed, the arm's cosine, and its ceiling: the same cosine
of the held-out pairs, hack minus clean.

Shapes: M modules, k directions, T steps, G samples of a step, N pair gradients, H held-out pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.analysis.measures.forecast import SAMPLE_TARGETS, held_out_units, paid_mean
from probe.analysis.statistics.geometry import extract, weighted
from probe.analysis.statistics.gram import Array, StepGram, StepReader
from probe.analysis.statistics.intervals import prompt_weights
from probe.analysis.statistics.means import mean_interval
from probe.analysis.statistics.nulls import true_labels
from probe.analysis.statistics.run_gradients import Linked, LinkedStep
from probe.records.run import Run
from probe.settings.arms import ARMS
from probe.settings.gate import GATES
from probe.settings.words import Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRemoval:
    """One arm; None where a share has no progress to be of, or the ceiling no direction. Keys of the JSON."""

    arm: str
    cos_in: float  # mean over prompts
    hackward_frac: float  # norm(relu(V g)) / norm(g), mean over prompts
    ceiling: float | None  # mean cosine of the held-out pairs; None where its 95% interval holds 0
    norm_removed: float  # norm(g - g') / norm(g), root mean square over prompts
    margin_removed: float | None
    hacks_removed: float | None
    honest_removed: float | None

    @property
    def pull(self) -> float | None:
        """cos_in as a share of the ceiling; None without a ceiling above 0."""
        return self.cos_in / self.ceiling if self.ceiling is not None and self.ceiling > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Products:
    """The inner products of an arm's directions V: all that its gate depends on."""

    pairs: Array  # (M, k, N) with the pair gradients
    kept: NDArray[np.intp]  # (M,) directions of each module
    of_step: Callable[[StepGram], Array]  # (M, G, k) with the samples of a step

    def cosine(self, along: Array) -> float:
        """Global signed cosine of a gradient of norm 1 with V g = `along` (M, k)."""
        used = self.kept > 0
        return float((along.sum(1)[used] / np.sqrt(self.kept[used])).sum() / np.sqrt(used.sum()))


def arm_removals(run: Run, linked: Linked, *, gate: Gate | None = None, overshoot: float = 1.0) -> list[ArmRemoval]:
    """A row for the gate along v_hack, under the name of the arm that the records are of, and one for every control.

    Args:
        run: a frozen replay with inner products.
        linked: its records and inner products.
        gate: of all arms; None: each arm's own.
        overshoot: factor on what is removed.
    """
    if not linked.steps or not linked.pairs.held_out.any():
        return []
    measured, v_hack, rows = linked.steps[0].record.arm, _along_v_hack(linked), []
    reader = StepReader.of(run, ARMS[measured].basis)
    for arm in (measured, *reader.controls):
        products = v_hack if ARMS[arm].directions == "v_hack" else _along_control(reader, arm)
        row = _removal(arm, linked, products, v_hack if ARMS[arm].dosed else None, gate or ARMS[arm].gate, overshoot)
        rows.append(row)
    return rows


def _along_v_hack(linked: Linked) -> _Products:
    pairs = linked.pairs
    drawn = extract(pairs, *true_labels(pairs.held_out), pairs.extraction)
    rows = drawn.rows[0]  # (M, k, N)
    return _Products(
        pairs=np.matmul(rows, pairs.pairs),
        kept=drawn.kept[0].sum(1),
        of_step=lambda step: np.matmul(step.inner, rows.transpose(0, 2, 1)),
    )


def _along_control(reader: StepReader, arm: str) -> _Products:
    pairs = reader.control(arm)
    # Modules that keep fewer directions than others are filled with rows of zeros.
    kept = np.abs(pairs).max(-1) > 0
    return _Products(pairs=pairs, kept=kept.sum(1), of_step=lambda step: step.along[arm])


def _removal(
    arm: str, linked: Linked, products: _Products, dose: _Products | None, gate: Gate, overshoot: float
) -> ArmRemoval:
    """One row; `dose`: scale what is removed of each step to what the gate along these directions would remove."""
    shares = {name: _Shares() for name in ("margin", *SAMPLE_TARGETS)}
    cosines, hackward, squares = [], [], []
    on_pairs, along_pairs = _held_out(linked, products)
    for number, step in enumerate(linked.steps):
        gram, size = linked.read(step.record.step), linked.totals.norm[number]
        samples = products.of_step(gram)  # (M, G, k)
        along = np.einsum("i,mik->mk", step.weights, samples) / size
        removed = overshoot * GATES[gate](along)
        if dose is not None:
            wanted = GATES[gate](np.einsum("i,mik->mk", step.weights, dose.of_step(gram)) / size)
            norm = np.linalg.norm(removed)
            removed = removed * (overshoot * np.linalg.norm(wanted) / norm if norm > 0 else 0.0)
        cosines.append(products.cosine(along))
        hackward.append(np.linalg.norm(along.clip(min=0)))
        squares.append(np.square(removed).sum())
        lost = np.einsum("mk,mhk->h", removed, along_pairs)
        shares["margin"].add(step, float(on_pairs[number].mean()), float(lost.mean()))
        for name, chosen in SAMPLE_TARGETS.items():
            mean = paid_mean(linked, step, chosen)
            if mean is not None:
                norm = weighted(gram, mean[None, :]).norm[0]
                progress = step.weights @ step.products @ mean / (norm * size)
                shares[name].add(step, float(progress), float((removed * (mean @ samples)).sum() / norm))
    weights = prompt_weights([step.record.problem_id for step in linked.steps])
    ceilings = [products.cosine(pair) for pair in along_pairs.swapaxes(0, 1)]
    return ArmRemoval(
        arm=arm,
        cos_in=float(weights @ cosines),
        hackward_frac=float(weights @ hackward),
        ceiling=_told_from_zero(ceilings) if (products.kept > 0).any() else None,
        norm_removed=float(np.sqrt(weights @ squares)),
        margin_removed=shares["margin"].share(),
        hacks_removed=shares["hacks"].share(),
        honest_removed=shares["honest"].share(),
    )


def _told_from_zero(cosines: list[float]) -> float | None:
    """Their mean; None where its interval holds 0: a share of nothing would be any number."""
    interval = mean_interval(cosines)
    return float(np.mean(cosines)) if interval is not None and interval.low * interval.high > 0 else None


def _held_out(linked: Linked, products: _Products) -> tuple[Array, Array]:
    """(T, H) cosines of the steps' gradients with the held-out differences h, and (M, H, k) V h; h has norm 1."""
    hack = np.flatnonzero(linked.pairs.held_out)
    clean = hack + len(linked.pairs.held_out)
    _, norm = held_out_units(linked.pairs)["margin"]
    inner = linked.totals.inner.sum(0)  # (T, N)
    progress = (inner[:, hack] - inner[:, clean]) / (norm * linked.totals.norm[:, None])
    along = products.pairs[:, :, hack] - products.pairs[:, :, clean]  # (M, k, H)
    return progress, along.swapaxes(1, 2) / norm[:, None]


class _Shares:
    """Progress on a target and what of it is lost, step by step."""

    def __init__(self) -> None:
        self._prompts: list[str] = []
        self._progress: list[float] = []
        self._lost: list[float] = []

    def add(self, step: LinkedStep, progress: float, lost: float) -> None:
        """One step that has the target."""
        self._prompts.append(step.record.problem_id)
        self._progress.append(progress)
        self._lost.append(lost)

    def share(self) -> float | None:
        """The share that is lost, of means over prompts; None where there is no progress."""
        if not self._prompts:
            return None
        weights = prompt_weights(self._prompts)
        progress = float(weights @ np.array(self._progress))
        return float(weights @ np.array(self._lost)) / progress if progress > 0 else None
