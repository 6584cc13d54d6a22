"""The tables that the rules rest on: parts of R0, nulls, comparisons of arms, modules."""

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import TextTable, interval, number, p_value, share, short, wrap
from probe.analysis.training_outcome import RATES
from probe.settings.words import ALL

MOST_MODULES = 8  # rows of the map over modules; the others are counted


def parts(a: Analysis) -> str:
    """R0, part by part."""
    word = {True: "holds", False: "BROKEN", None: "not seen"}
    lines = ["R0 part by part"]
    for part in a.validity:
        lines += wrap(f"  {word[part.holds]:<9} {part.name}: {part.text}", indent=" " * 12)
    return "\n".join(lines)


def heldout(a: Analysis) -> TextTable:
    """The evaluations of a training run."""
    rows = [
        (
            *(str(row["step"]), row["weights"], setting, str(own["num_problems"])),
            *(share(own[rate]["rate"]) for rate in RATES),
            *(number((row["frozen"] or {}).get(name)) for name in ("margin", "cos_moved", "hackward_frac_moved")),
        )
        for row in (a.outcome.evaluations if a.outcome else ())
        for setting, own in row["rates"].items()
        if setting != ALL or len(row["rates"]) > 2
    ]
    header = ("steps", "weights", "setting", "problems", *RATES, "margin", "cos_moved", "hackward_frac")
    title = "Held-out problems (margin: change of held-out logp(hack) - logp(clean); moved: start minus now)"
    return TextTable(name="held-out", title=title, header=header, rows=rows, left=3)


def nulls(a: Analysis) -> TextTable:
    """Every statistic against every null."""
    drawn = [] if a.permutation is None else a.permutation.rows
    rows = [
        (
            row.metric,
            row.null,
            number(row.value),
            number(row.test.mean),
            f"{row.test.sd:.3f}",
            number(row.test.q95),
            number(row.test.d),
            number(row.test.z, 1),
            p_value(row.test.p),
            str(row.test.num_draws),
        )
        for row in sorted(drawn, key=lambda row: (row.metric, row.null))
    ]
    header = ("statistic", "null", "value", "mean", "sd", "95th pct", "d", "z", "p", "draws")
    title = (
        f"Nulls (arm {a.measured_arm}; N2 labels permuted across pairs, N3 clean against clean, N4 batch labels "
        "permuted within prompts, pair-swap: hack and clean swapped within pairs)"
    )
    return TextTable(name="nulls", title=title, header=header, rows=rows, left=2)


def comparisons(a: Analysis) -> TextTable:
    """Arms against the measured arm, paired by prompt."""
    rows = [
        (
            c.metric,
            c.arm,
            str(c.num_prompts),
            number(c.difference),
            "identical" if c.identical else interval(c.interval),
            p_value(c.p),
            p_value(c.equivalence.p if c.equivalence else None),
        )
        for c in sorted(a.comparisons, key=lambda c: c.metric)
    ]
    header = ("measure", "arm", "prompts", "difference", "95% interval", "flip p", "TOST p")
    title = f"Arms minus {a.measured_arm}, paired by prompt (TOST: equivalence within +-.05)"
    return TextTable(name="comparisons", title=title, header=header, rows=rows, left=2)


def modules(a: Analysis) -> TextTable:
    """The modules whose cosine is furthest from the null of permuted labels."""
    drawn = [] if a.permutation is None else a.permutation.modules
    ordered = sorted(drawn, key=lambda row: -abs(row.z))
    rows = [
        (short(row.module, 60), number(row.mean_cos), number(row.z, 1), p_value(row.p_max_t))
        for row in ordered[:MOST_MODULES]
    ]
    more = f"; {len(ordered) - MOST_MODULES} more in --json" if len(ordered) > MOST_MODULES else ""
    title = f"Modules (mean cos_in over prompts; z: N2; p: max-T over {len(ordered)} modules{more})"
    return TextTable(name="modules", title=title, header=("module", "cos_in", "z", "p"), rows=rows)


def sensitivity(a: Analysis) -> TextTable:
    """What another k would have measured."""
    rows = [
        (
            f"{row.k}{' (this run)' if row.chosen else ''}",
            str(row.num_directions),
            number(row.cos_in),
            number(row.cos_out),
            share(row.hackward_frac_in),
            share(row.auroc),
        )
        for row in a.settings
    ]
    header = ("k", "directions", "cos_in", "cos_out one-sided", "hackward_frac_in", "AUROC")
    title = "Other k, from inner products (exploratory: choosing k here spends the data)"
    return TextTable(name="other-k", title=title, header=header, rows=rows)
