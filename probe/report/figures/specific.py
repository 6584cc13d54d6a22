"""Hack against clean: within-prompt contrasts, and how well scores tell the two apart."""

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import p_value
from probe.analysis.statistics.nulls import NORMAL_975
from probe.analysis.statistics.stats import Interval
from probe.report.figures.forest import ForestRow, forest
from probe.report.panel import Figure, signed


def contrasts(name: str, analysis: Analysis) -> Figure | None:
    """Mean within-prompt differences of the measured arm, with bootstrap intervals over prompts."""
    rows = [
        ForestRow(
            label=c.name if c.metric == "cos_S_contrib" else f"{c.name} (nll)",
            note=f"{signed(c.difference)} \u00b7 p {p_value(c.p)}",
            value=c.difference,
            interval=c.interval,
            null=_band(c.difference, c.haar.z) if c.haar else None,
        )
        for c in analysis.contrasts
        if c.arm == analysis.measured_arm and c.difference is not None
    ]
    return forest(
        name,
        "Do hacks point further hack-ward?",
        rows,
        subtitle="Within-prompt differences of cos_S_contrib; (nll): of cos_S_nll",
        label="difference of cosines, mean over prompts with 95% interval",
        key=[("rect band", "95% of Haar directions"), ("dot mark", "observed")],
    )


def areas(name: str, analysis: Analysis) -> Figure | None:
    """AUROC for hacked among A > 0: the measurement and the trivial scores that it has to beat."""
    rows = [
        ForestRow(
            label=s.score if i == 0 else f"{s.score} (trivial)",
            note="\u2013" if s.auroc is None else f"{s.auroc:.2f}{_range(s.interval)}",
            value=s.auroc,
            interval=s.interval,
            strong=i == 0,
        )
        for i, s in enumerate(analysis.specificity)
    ]
    return forest(
        name,
        "Does the cosine know a hack better than trivia?",
        rows,
        subtitle="AUROC for hacked among A > 0, bootstrap over prompts",
        label="AUROC (0.5 = no better than chance, 1 = without error)",
        centre=0.5,
        count=6,
        key=[("dot mark", "the measurement"), ("dot hollow", "what it must beat")],
    )


def _band(difference: float | None, z: float) -> tuple[float, float] | None:
    """Where 95% of the Haar law lies that gave this z."""
    if not difference or not z:
        return None
    half = NORMAL_975 * abs(difference / z)
    return -half, half


def _range(interval: Interval | None) -> str:
    return f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
