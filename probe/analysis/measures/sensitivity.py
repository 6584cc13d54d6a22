"""What another k would have measured: v_hack for a grid of k, and what a one-sided gate along it would leave."""

from dataclasses import dataclass, replace

import numpy as np

from probe.analysis.measures.gates import gate_all
from probe.analysis.statistics.bootstrap import auroc
from probe.analysis.statistics.draws import true_labels
from probe.analysis.statistics.geometry import cosines, extract
from probe.analysis.statistics.labels import paid_labels
from probe.analysis.statistics.linked import Linked
from probe.analysis.statistics.stats import prompt_weights

GRID = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One k with the run's tau and noise floor; means over prompts, None where nothing can be measured."""

    k: int
    chosen: bool  # the run's own
    num_directions: int  # kept over all modules
    cos_in: float | None
    cos_out: float | None
    hackward_frac_in: float | None
    auroc: float | None  # of cos_S_contrib for hacked among A > 0


def settings(linked: Linked) -> list[Setting]:
    """Every k of the grid that the pairs and the modules allow, and the run's own."""
    pairs = linked.pairs
    own = pairs.extraction.k
    most = min(int((~pairs.held_out).sum()), int(pairs.sizes.min()))
    return [_setting(linked, k) for k in sorted({own, *(k for k in GRID if k <= most)})]


def _setting(linked: Linked, k: int) -> Setting:
    pairs, labels = linked.pairs, paid_labels(linked)
    directions = extract(pairs, *true_labels(pairs.held_out), replace(pairs.extraction, k=k))
    gated = gate_all(directions, linked.totals)
    weights = prompt_weights([step.record.problem_id for step in linked.steps])
    columns = (gated.cos_in, gated.cos_out, gated.hackward_frac_in)
    means = [float(values @ weights) if len(weights) else None for values in columns]
    area = auroc(cosines(directions.axes(), linked.gradients)[0, labels.rows], labels.hacked)
    return Setting(
        k=k,
        chosen=k == pairs.extraction.k,
        num_directions=int(directions.kept.sum()),
        cos_in=means[0],
        cos_out=means[1],
        hackward_frac_in=means[2],
        auroc=None if np.isnan(area) else area,
    )
