"""How far the mean cosine lies from zero and from its nulls, arm by arm and null by null."""

from collections.abc import Sequence

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import p_value
from probe.analysis.statistics.nulls import NORMAL_975
from probe.analysis.statistics.thresholds import NEAR_ZERO
from probe.report.figures.forest import ForestRow, forest
from probe.report.panel import Figure, plural, signed

NULL_NAMES = {
    "N1": "N1: random (Haar) directions",
    "N2": "N2: labels permuted across pairs",
    "N3": "N3: clean against clean pairs",
    "N4": "N4: labels of the batch permuted",
}

_ARMS_KEY = (
    ("rect band", "95% of Haar"),
    ("rect zone", f"\u00b1{NEAR_ZERO}"),
    ("dot mark", "measured arm"),
    ("dot hollow", "other arms"),
)


def alignment(labelled: Sequence[tuple[str, Analysis]]) -> Figure | None:
    """Mean cos_in over prompts of every arm of every (label, analysis), against its Haar null."""
    many = len(labelled) > 1
    rows = [
        ForestRow(
            label=f"{label} \u00b7 {s.arm}" if many else s.arm,
            note=f"{signed(s.mean_cos_in)} \u00b7 {plural(s.num_prompts, 'prompt')}",
            value=s.mean_cos_in,
            interval=s.interval,
            null=(-NORMAL_975 * s.haar.sd_shared, NORMAL_975 * s.haar.sd_shared) if s.haar else None,
            strong=s.arm == analysis.measured_arm,
        )
        for label, analysis in labelled
        for s in analysis.summaries
    ]
    return forest(
        "alignment",
        "Does the gradient point along the direction?",
        rows,
        subtitle=f"Mean cos_in, 95% over prompts; \u00b1{NEAR_ZERO}: no alignment",
        label="cos_in (\u2192 descent moves towards the hack)",
        zone=(-NEAR_ZERO, NEAR_ZERO),
        key=_ARMS_KEY,
    )


def nulls(name: str, analysis: Analysis) -> Figure | None:
    """cos_in of the measured arm against every null that was drawn."""
    own = next((s for s in analysis.summaries if s.arm == analysis.measured_arm), None)
    if own is None or own.mean_cos_in is None:
        return None
    tests = (
        {row.null: row.test for row in analysis.permutation.rows if row.metric == "cos_in"}
        if analysis.permutation
        else {}
    )
    if own.haar is not None:
        tests["N1"] = own.haar.null()
    rows = [
        ForestRow(
            label=text,
            note=f"p {p_value(tests[null].p)}",
            value=own.mean_cos_in,
            null=(tests[null].mean - NORMAL_975 * tests[null].sd, tests[null].mean + NORMAL_975 * tests[null].sd),
        )
        for null, text in NULL_NAMES.items()
        if null in tests
    ]
    return forest(
        name,
        "What would no signal read?",
        rows,
        subtitle=f"Mean cos_in of {own.arm} ({signed(own.mean_cos_in)}) against each null",
        label="cos_in",
        key=[("dot mark", "observed"), ("rect band", "null: mean \u00b1 1.96 sd")],
    )
