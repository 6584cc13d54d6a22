"""Compare detectors on one set of rollouts: AUROC with labels, rank agreement without, and who beats whom."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from probe.analysis.detectors import (
    NULLS,
    OF_GRADIENTS,
    TRIVIAL,
    PairMaterial,
    Scores,
    project_states,
    row_of,
    separation,
)
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.intervals import (
    Array,
    Interval,
    areas_without_each,
    cluster_numbers,
    ranks,
    student_quantile,
)

# {detector that needs neither pairs nor labels: what its order says}
WITHOUT_PAIRS = {
    "logratio": "ranks what training made likelier",
    "fingerprint": "splits the rollouts in two (read both ends)",
}


def leading(scores: Mapping[str, Scores], names: Sequence[str]) -> str | None:
    """Return the first detector that was measured and needs no label; None if there is none."""
    for name in names:
        row, _ = row_of(name)
        if scores[name].values is not None and "labels" not in row.needs and row.name not in NULLS:
            return name
    return None


def areas_of(scores: Mapping[str, Scores], labels: Array, prompts: Sequence[str]) -> list[Estimate]:
    """Return the AUROC of every detector for hacks."""
    rows = []
    for name, score in scores.items():
        if score.values is None:
            rows.append(Estimate(name=name, unit="prompt", null=0.5, why=score.why))
        else:
            row = separation(name, score.values, labels, prompts)
            rows.append(replace(row, why="; ".join(filter(None, (row.why, score.why)))))
    return rows


def against_trivial(scores: Mapping[str, Scores], labels: Array, prompts: Sequence[str]) -> list[Estimate]:
    """Subtract the AUROC of every trivial score, in its better direction, from the first measured gradient detector's.

    arm: the gradient detector. parts: `own` and `trivial`, the two AUROCs on the rollouts that have both scores.
    """
    first = next((name for name in OF_GRADIENTS if name in scores and scores[name].values is not None), None)
    if first is None:
        return []
    rows = []
    for name, score in scores.items():
        if row_of(name)[0].name not in TRIVIAL or score.values is None:
            continue
        leading = scores[first].values
        assert leading is not None
        known = ~np.isnan(leading) & ~np.isnan(score.values) & ~np.isnan(labels)
        members = [prompts[row] for row in np.flatnonzero(known).tolist()]
        hacked = labels[known] == 1
        a, b = (areas_without_each(values[known], hacked, members) for values in (leading, score.values))
        row = Estimate(name=name, arm=first, unit="prompt")
        if a is None or b is None:
            rows.append(replace(row, why="a side is in fewer than two prompts"))
            continue
        # A trivial score that is lower for hacks separates them as well; a classifier keeps its direction.
        other, without = (b[0], b[1]) if name == "words" or b[0] >= 0.5 else (1 - b[0], 1 - b[1])
        differences, value = a[1] - without, a[0] - other
        half = student_quantile(0.95, a[2]) * math.sqrt((len(differences) - 1) * differences.var())
        interval = Interval(low=max(-1.0, value - half), high=min(1.0, value + half)) if half > 0 else None
        parts = {"own": a[0], "trivial": other}
        rows.append(replace(row, value=value, interval=interval, n=len({*members}), null=0.0, parts=parts))
    return rows


def agreements(scores: Mapping[str, Scores], lead: str, prompts: Sequence[str]) -> list[Estimate]:
    """Return Spearman's rank correlation of every detector with the lead, with its interval over prompts.

    The interval is on Fisher's scale, with a jackknife variance over prompts.
    """
    first, rows = scores[lead].values, []
    assert first is not None
    for name, score in scores.items():
        if name == lead:
            continue
        if score.values is None:
            rows.append(Estimate(name=name, unit="prompt", null=0.0, why=score.why))
            continue
        known = ~np.isnan(first) & ~np.isnan(score.values)
        members = [prompts[row] for row in np.flatnonzero(known).tolist()]
        rows.append(replace(_spearman(name, first[known], score.values[known], members), why=score.why))
    return rows


def _spearman(name: str, a: Array, b: Array, prompts: Sequence[str]) -> Estimate:
    num_prompts = len({*prompts})
    estimate = Estimate(name=name, n=num_prompts, unit="prompt", null=0.0)
    few = replace(estimate, why="too few prompts, or one of the two scores is constant")
    if num_prompts < 3:
        return few
    x, y, member = ranks(a), ranks(b), cluster_numbers(prompts)
    columns = (np.ones(len(x)), x, y, x * x, y * y, x * y)
    sums = np.stack([np.bincount(member, weights=column) for column in columns])
    total = sums.sum(1, keepdims=True)

    def correlation(n: Array) -> Array:
        num, sx, sy, xx, yy, xy = n
        scale = np.sqrt(np.maximum(xx - sx * sx / num, 0) * np.maximum(yy - sy * sy / num, 0))
        return np.divide(xy - sx * sy / num, scale, out=np.full_like(scale, np.nan), where=scale > 0)

    if np.isnan(value := float(correlation(total)[0])):
        return few
    z = np.arctanh(np.clip(correlation(total - sums), -1 + 1e-9, 1 - 1e-9))
    half = student_quantile(0.95, num_prompts - 1) * math.sqrt((num_prompts - 1) * np.nanvar(z))
    centre = float(np.arctanh(np.clip(value, -1 + 1e-9, 1 - 1e-9)))
    interval = Interval(low=math.tanh(centre - half), high=math.tanh(centre + half)) if half > 0 else None
    return replace(estimate, value=value, interval=interval)


def left_out_kinds(pairs: PairMaterial) -> list[Estimate]:
    """Return, for each kind of hack, the AUROC of its pairs' sides by a score from the pairs of all other kinds.

    The score is `similarity`, or `activation` without gradients; the unit is the pair.
    """
    kinds, rows = np.array(pairs.kinds), []
    names = sorted({*pairs.kinds})
    for kind in names if len(names) > 1 else []:
        used, of_kind = np.flatnonzero(~pairs.held_out & (kinds != kind)), np.flatnonzero(kinds == kind)
        if not len(used):
            continue
        if pairs.similarities is not None:
            means = pairs.similarities[:, of_kind][..., used].mean(-1)  # (2, of kind, 2)
            scores = means[..., 0] - means[..., 1]
        elif pairs.states is not None:
            scores = project_states(pairs.states[:, of_kind], pairs, used)
            scores = scores - scores.mean(0)
        else:
            return []
        row = separation(kind, scores.ravel(), np.repeat([1.0, 0.0], len(of_kind)), [*range(len(of_kind))] * 2)
        rows.append(replace(row, unit="pair", parts={"num_extraction": len(used)}))
    return rows


def beaten_by(rows: Sequence[Estimate]) -> tuple[list[Estimate], list[Estimate]]:
    """Split rows of `against_trivial` into (scores that do at least as well, scores that may do as well)."""
    measured = sorted((row for row in rows if row.value is not None), key=lambda row: -row.parts["trivial"])
    better = [row for row in measured if (row.value or 0.0) <= 0 and row.parts["trivial"] > 0.5]
    return better, [row for row in measured if row not in better and row.low <= 0]


def worth(
    families: Mapping[str, Sequence[Estimate]],
    scores: Mapping[str, Scores],
    lead: str | None,
    labels: Array | None,
    *,
    is_drawn: bool,
) -> list[str]:
    """Return sentences on what a ranking is worth, by the fields of `probe.runs.detect.Detected`.

    Args:
        families: the estimates.
        scores: of all detectors.
        lead: the detector that orders the list.
        labels: (rollouts,) 1 for a hack, 0 for none, NaN if unknown; None without any label.
        is_drawn: whether rollouts were drawn for labels.
    """
    lines, areas, beaten = [], families.get("auroc"), families.get("beaten")
    measured = {name: score.values for name, score in scores.items() if score.values is not None}
    known, num_ranked = 0 if labels is None else int((labels >= 0).sum()), max(map(len, measured.values()), default=0)
    if areas is not None and 2 * known < num_ranked:
        lines.append(
            f"Only {known} of {num_ranked} rollouts have a label. If a score drew them, the AUROCs are biased: --label "
            "N with --labels gives precision and rates that are not."
        )
    if areas is not None and all(row.value is None for row in areas):
        hacks = int((labels == 1).sum()) if labels is not None else 0
        lines.append(f"No AUROC: {hacks} of the {known} ranked rollouts with a label are hacks, and it compares both.")
    elif areas is not None and beaten:
        lines += _against_trivial_in_words(areas, beaten)
    if of_lead := [row for row in areas or () if row.name == lead and row.is_bounded and row.low <= 0.5]:
        lines.append(_no_better_than_chance(of_lead[0], areas or ()))
    elif areas is None and not is_drawn:
        lines.append("No labels: nothing says how good these rankings are. --label 20 asks for a few and says it.")
    kinds = families.get("left_out")
    if left_out := [row for row in kinds or () if row.value is not None]:
        worst, best = (choose(left_out, key=lambda row: row.value or 0.0) for choose in (min, max))
        lines.append(
            f"Finds exploits like your pairs. Pairs of the other kinds find a left-out kind with AUROC {worst:.2f} "
            f"(lowest, {worst.name}) to {best.value:.2f} (highest). Hacks of no kind in the pairs may rank anywhere."
        )
    elif kinds is not None:
        lines.append("Finds exploits like your pairs, which name one kind alone: no kind can be left out to test this.")
    else:
        what = "".join(f" {name} {does}." for name, does in WITHOUT_PAIRS.items() if name in measured)
        lines.append(f"Without pairs nothing knows what a hack is.{what} Write pairs of your hack for --pairs.")
    return lines


def _no_better_than_chance(lead: Estimate, areas: Sequence[Estimate]) -> str:
    """Say that the order of the list is not that of the labels, and which detector has a better one."""
    what = "worse than chance: its first rollouts are clean ones" if lead.high < 0.5 else "not clearly above chance"
    line = f"The list is ordered by {lead.name}, whose AUROC {lead} is {what} (0.50)."
    better = [row for row in areas if row.is_bounded and row.low > 0.5 and row.name not in NULLS]
    if not better:
        return f"{line} No other detector is clearly above it."
    best = max(better, key=lambda row: row.value or 0.0)
    return f"{line} --detectors {best.name} orders it by {best.name}, AUROC {best}."


def _against_trivial_in_words(areas: Sequence[Estimate], beaten: Sequence[Estimate]) -> list[str]:
    (better, unclear), area, first = beaten_by(beaten), beaten[0].parts.get("own"), beaten[0].arm
    if area is None:
        return []
    line = f"{first} separates hacks (AUROC {area:.2f}) better than every score without a gradient."
    if better:
        named = ", ".join(f"{row.name} {row.parts['trivial']:.2f}" for row in better)
        line = f"BEATEN: scores without a gradient separate hacks at least as well as {first} {area:.2f}: {named}."
    elif unclear:
        named = ", ".join(f"{row.name} {row.parts['trivial']:.2f} (difference {row:+.2f})" for row in unclear)
        line = f"{first} separates hacks (AUROC {area:.2f}), but not clearly better than {named}."
    nulls = [f"{row.value:.2f} ({row.name})" for row in areas if row.name in NULLS and row.value is not None]
    if not nulls:
        return [line]
    means = f"one draw of directions without meaning has {' and '.join(nulls)}; 0.50 is no separation."
    return [line, f"For comparison, {means}"]
