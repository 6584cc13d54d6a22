"""One Analysis as plain text, at most 100 columns wide: what `probe analyze RUN` prints, and its tables.

To add a table: a function here that makes a `TextTable` of an Analysis (without rows where there is nothing to show),
and its name in `all_tables`, from which the page picks by table name (`probe.report.sections`).
"""

import numpy as np

from probe.analysis.analyze import Analysis
from probe.analysis.formatting import (
    TextTable,
    interval,
    number,
    p_value,
    render_table,
    share,
    share_interval,
    short,
    wrap,
    yes,
)
from probe.analysis.measures.contrasts import CONTRASTS
from probe.analysis.metrics import MetricKey
from probe.analysis.statistics.nulls import HaarTest, haar_test
from probe.analysis.statistics.power import ONE_SAMPLE, mde
from probe.analysis.statistics.thresholds import POWER
from probe.analysis.training_runs import RATES
from probe.analysis.verdict.verdict import finding_lines, note_lines, verdict_lines
from probe.records.records import StepRecord
from probe.settings.words import ALL, DEFAULT_CONDITION, Word

CONTRASTS_NOTE = (
    "; contrasts a - b: Welch's unit is the sample (naive); within-prompt sign flip, unit: prompt; Holm: over the "
    "contrasts of an arm; adj: regression within prompts on source, gt_pass, log length and hint"
)
MOST_MODULES = 8  # rows of the table of modules; the others are counted in its title

SEED_TABLES = "The seed's tables V and D (no verdict rests on them; mechanism: an identity)"


def format_verdict(analysis: Analysis) -> str:
    """The first screen: the verdict, the three questions, what to keep in mind, and the next command."""
    condition = "" if analysis.condition == DEFAULT_CONDITION else f" condition {analysis.condition}"
    head = (
        f"run {analysis.run}{condition}: {analysis.num_steps} groups of {analysis.num_prompts} prompts, "
        f"arms {', '.join(analysis.arms) or 'none'}, loss {', '.join(analysis.loss_types) or 'none'}"
    )
    verdict, bases = analysis.verdict, render_table(basis_table(analysis))
    asked = verdict.word not in (Word.BROKEN, Word.TRAINED)
    lines = [*wrap(head), "", *verdict_lines("VERDICT", verdict, asked=asked), "", *([bases, ""] if bases else [])]
    return "\n".join([*lines, *note_lines(verdict)]) + "\n"


def format_analysis(analysis: Analysis) -> str:
    """The whole analysis: the first screen, then the measures behind its findings, nulls and tables."""
    validity = ["Validity, part by part"]
    for part in analysis.validity:
        validity += wrap(f"  {part.says:<9} {part.name}: {part.text}", indent=" " * 12)
    rows = [SEED_TABLES, *(line for row in analysis.checks for line in finding_lines(row))]
    tables = [heldout_table(analysis), *all_tables(analysis), power_table(analysis)]
    sections = ["\n".join(validity), *filter(None, map(render_table, tables)), "\n".join(rows)]
    return "\n\n".join([format_verdict(analysis).rstrip(), *sections]) + "\n"


def all_tables(analysis: Analysis) -> list[TextTable]:
    """Every table of the records that has rows, in the order of reading."""
    tables = [
        share_table(analysis),
        ceiling_table(analysis),
        forecast_table(analysis),
        null_table(analysis),
        arm_table(analysis),
        comparison_table(analysis),
        gate_table(analysis),
        cell_table(analysis),
        bucket_table(analysis),
        *contrast_tables(analysis),
        specificity_table(analysis),
        module_table(analysis),
        step_table(analysis),
    ]
    return [table for table in tables if table.rows]


def heldout_table(analysis: Analysis) -> TextTable:
    """The evaluations of a training run on held-out problems, a row a setting."""
    evaluations = analysis.outcome.evaluations if analysis.outcome else []
    rows = []
    for evaluation in evaluations:
        moved = evaluation["frozen"] or {}
        for setting, rates in evaluation["rates"].items():
            # With one setting, the row over all settings would repeat it.
            if setting == ALL and len(evaluation["rates"]) <= 2:
                continue
            rows.append(
                (
                    str(evaluation["step"]),
                    evaluation["weights"],
                    setting,
                    str(rates["num_problems"]),
                    *(share(rates[rate]["rate"]) for rate in RATES),
                    number(moved.get("margin")),
                    number(moved.get("cos_moved")),
                    number(moved.get("hackward_frac_moved")),
                    number(moved.get("hackward_q95")),
                )
            )
    header = ("steps", "weights", "setting", "problems", *RATES, "margin", "cos_moved", "hackward_frac", "Haar 95th")
    title = (
        "Held-out problems (margin: change of held-out logp(hack) - logp(clean); moved: start minus now; Haar 95th: of "
        "hackward_frac along random directions)"
    )
    return TextTable(name="held-out", title=title, header=header, rows=rows, left=3)


def basis_table(analysis: Analysis) -> TextTable:
    """The verdict in every basis and the numbers behind it, of a run that measures in several."""
    rows = []
    for row in analysis.bases if len(analysis.bases) > 1 else []:
        pull, contrast, margin = (finding.number for finding in row.verdict.findings)
        price = None if row.forecast is None else row.forecast.row("honest")
        shares = ("-" if number is None else str(number) for number in (pull, contrast))
        removed = (margin, None if price is None else price.removed)
        rows.append((row.basis, row.verdict.word, *shares, *("-" if x is None else x.percent() for x in removed)))
    header = ("basis", "verdict", "pull", "contrast", "margin removed", "honest removed")
    return TextTable(name="bases", title=analysis.agreement, header=header, rows=rows, left=2)


def share_table(analysis: Analysis) -> TextTable:
    """Every share of the held-out ceiling, with its parts."""
    rows = []
    for row in analysis.shares:
        rows.append(
            (
                row.name,
                "-" if row.share is None else share(row.share.value),
                "-" if row.share is None else share_interval(row.share.interval),
                number(row.measured),
                number(row.ceiling),
                str(row.num_prompts),
                str(row.num_held_out),
                "-" if row.sd_prompts is None else f"{row.sd_prompts:.3f}",
                "-" if row.sd_pairs is None else f"{row.sd_pairs:.3f}",
                share(row.overlap),
            )
        )
    header = (
        "share",
        "value",
        "95%",
        "read",
        "ceiling",
        "prompts",
        "pairs",
        "sd prompt",
        "sd pairs",
        "overlap",
    )
    title = (
        f"Shares of what held-out pairs read (arm {analysis.measured_arm}; interval over prompts and pairs; sd pairs: "
        "of the measured mean over half-samples of the extraction pairs; overlap: share of the label's variance within "
        "prompts that trivial scores leave)"
    )
    return TextTable(name="shares", title=title, header=header, rows=rows)


def ceiling_table(analysis: Analysis) -> TextTable:
    """How hack-ward the pairs of every kind read along v_hack of the other kinds."""
    rows = []
    for row in analysis.ceilings:
        numbers = (number(row.cos), interval(row.interval), str(row.num_pairs), str(row.num_extraction))
        rows.append((row.sorted_by, row.left_out, *numbers))
    header = ("by", "left out", "cos", "95%", "pairs", "extracted from")
    title = (
        "Ceilings by kind (mean cosine of the pairs of a kind along v_hack of all other kinds; interval over both sets "
        "of pairs)"
    )
    return TextTable(name="ceilings", title=title, header=header, rows=rows, left=2)


def forecast_table(analysis: Analysis) -> TextTable:
    """What the gate would remove of the progress on every target."""
    forecast = analysis.forecast
    rows = []
    for row in forecast.rows if forecast is not None else []:
        rows.append(
            (
                row.target,
                number(row.progress),
                "-" if row.removed is None else share(row.removed.value),
                "-" if row.removed is None else share_interval(row.removed.interval),
                share(row.permuted_mean),
                share(row.permuted_q95),
                p_value(row.permuted_p),
                share(row.haar),
                str(row.num_prompts),
            )
        )
    header = ("target", "progress", "removed", "95%", "permuted", "95th pct", "p", "Haar", "prompts")
    title = ""
    if forecast is not None:
        title = (
            f"First-order forecast of the gate {forecast.gate} x {forecast.overshoot:g}, which removes "
            f"{forecast.norm_removed:.0%} of the norm: share of the progress that it removes, beside directions of "
            "permuted pairs (drawn) and Haar directions (expected) that remove the same norm"
        )
    return TextTable(name="forecast", title=title, header=header, rows=rows)


def null_table(analysis: Analysis) -> TextTable:
    """Every statistic against every null that was drawn."""
    drawn = [] if analysis.permutation is None else analysis.permutation.rows
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
        f"Nulls (arm {analysis.measured_arm}; N2 labels permuted across pairs, N3 clean against clean, N4 batch labels "
        "permuted within prompts: of cos_in a diagnostic, no null; pair-swap: hack and clean swapped within pairs)"
    )
    return TextTable(name="nulls", title=title, header=header, rows=rows, left=2)


def power_table(analysis: Analysis) -> TextTable:
    """The smallest effects that this run, and a training, find with POWER."""
    rows = []
    cosine = analysis.metrics.get(MetricKey("cos_in", "prompt"))
    cosines = list(cosine.by_unit.values()) if cosine is not None else []
    sd = float(np.std(cosines, ddof=1)) if len(cosines) > 1 else 0.0
    if sd > 0:
        effect = number(mde(sd, len(cosines), paired_correlation=ONE_SAMPLE, power=POWER))
        rows.append(("mean cos_in of this run", f"{len(cosines)} prompts", f"{sd:.3f}", effect, "-"))
    plan = analysis.plan
    correlation = 0.5 if plan.paired_correlation is None else plan.paired_correlation
    for seeds in sorted({3, 5, 10, plan.seeds} - {1}):
        unpaired = number(mde(plan.sd, seeds, power=POWER))
        paired = number(mde(plan.sd, seeds, paired_correlation=correlation, power=POWER))
        rows.append(("hack rates of two arms", f"{seeds} seeds", f"{plan.sd:.3f}", unpaired, paired))
    title = (
        f"Smallest effect found with {POWER:.0%} power, two-sided test at 5% (training: sd of the spec, else METHOD's; "
        f"paired: correlation {correlation:g} of the arms of one seed)"
    )
    header = ("what", "n", "sd of one", "effect", "paired")
    return TextTable(name="power", title=title, header=header, rows=rows, left=2)


def arm_table(analysis: Analysis) -> TextTable:
    """cos_in of every arm over prompts, against the Haar null."""
    rows = []
    for summary in analysis.summaries:
        haar = ("-", "-", "-")
        if summary.haar:
            shared, independent = summary.haar.shared, summary.haar.independent
            haar = (number(shared.z, 1), p_value(shared.p), number(independent.z, 1))
        rows.append(
            (
                summary.arm,
                str(summary.num_steps),
                str(summary.num_null),
                str(summary.num_prompts),
                number(summary.mean_cos_in),
                interval(summary.interval),
                p_value(summary.sign_flip_p),
                *haar,
            )
        )
    header = ("arm", "steps", "null", "prompts", "cos_in", "95% interval", "flip p", "z", "p", "z ind")
    title = "Arms (cos_in over prompts; z, p: Haar, one draw shared by all steps; z ind: a draw a step, optimistic)"
    return TextTable(name="arms", title=title, header=header, rows=rows)


def comparison_table(analysis: Analysis) -> TextTable:
    """Every other arm against the measured arm, paired by prompt."""
    rows = [
        (
            comparison.metric,
            comparison.arm,
            str(comparison.num_prompts),
            number(comparison.difference),
            "identical" if comparison.identical else interval(comparison.interval),
            p_value(comparison.p),
            p_value(comparison.equivalence_p),
        )
        for comparison in sorted(analysis.comparisons, key=lambda comparison: comparison.metric)
    ]
    header = ("measure", "arm", "prompts", "difference", "95% interval", "flip p", "TOST p")
    title = f"Arms minus {analysis.measured_arm}, paired by prompt (TOST: equivalence within +-.05)"
    return TextTable(name="comparisons", title=title, header=header, rows=rows, left=2)


def gate_table(analysis: Analysis) -> TextTable:
    """What the gate of every arm did to the gradient."""
    rows = [
        (
            summary.arm,
            number(summary.mean_cos_out),
            f"{summary.num_lowered}/{summary.num_steps - summary.num_null}",
            share(summary.mean_frac_fired),
            share(summary.mean_hackward_frac_in),
            number(summary.mean_cos_update),
        )
        for summary in analysis.summaries
    ]
    header = ("arm", "cos_out", "cos_out < cos_in", "frac_fired", "hackward_frac_in", "cos_update")
    title = "Gates (means over steps; mechanism, no evidence but for cos_update)"
    return TextTable(name="gates", title=title, header=header, rows=rows)


def cell_table(analysis: Analysis) -> TextTable:
    """Which samples of the measured arm carry the gradient: by source, hint, labels and sign of the advantage."""
    rows = [
        (
            short(cell.src_pool, 16),
            yes(cell.hint),
            yes(cell.hacked),
            yes(cell.gt_pass),
            "-0+"[cell.advantage_sign + 1],
            str(cell.n),
            str(cell.num_prompts),
            number(cell.mean_advantage),
            number(cell.mean_cos_contrib),
            number(cell.mean_cos_nll),
            f"{cell.dot:+.3g}",
        )
        for cell in analysis.cells
    ]
    header = ("source", "hint", "hacked", "gt", "A", "n", "prompts", "mean A", "cos_S_contrib", "cos_S_nll", "sum dot")
    title = f"Advantage cells (arm {analysis.measured_arm}; n in samples)"
    return TextTable(name="cells", title=title, header=header, rows=rows, left=4)


def bucket_table(analysis: Analysis) -> TextTable:
    """Sample cosines of the measured arm by source and label."""
    rows = []
    for bucket in analysis.buckets:
        label = "hacked" if bucket.hacked else "clean"
        mean = number(bucket.mean) if bucket.n else "empty"
        sd = "-" if bucket.n == 0 or bucket.sd is None else f"{bucket.sd:.3f}"
        rows.append((bucket.metric, short(bucket.src_pool, 24), label, str(bucket.n), str(bucket.num_null), mean, sd))
    header = ("metric", "source", "label", "n", "null", "mean", "sd")
    title = f"Buckets (arm {analysis.measured_arm}; unit: sample)"
    return TextTable(name="buckets", title=title, header=header, rows=rows, left=3)


def contrast_tables(analysis: Analysis) -> list[TextTable]:
    """One table a contrast, a row an arm; its title names what the contrast is confounded with."""
    header = ("arm", "n a", "n b", "Welch p", "prompts", "within", "95% interval", "flip p", "Holm", "Haar p", "adj")
    tables = []
    for place, spec in enumerate(CONTRASTS, 1):
        rivals = [spec.caveat] if spec.caveat else []
        rows = []
        for contrast in analysis.contrasts:
            if contrast.name != spec.name:
                continue
            if contrast.arm == analysis.measured_arm:
                rivals += contrast.confounded_with
            rows.append(
                (
                    contrast.arm,
                    str(contrast.n_a),
                    str(contrast.n_b),
                    p_value(contrast.welch_p),
                    str(contrast.num_prompts),
                    number(contrast.difference),
                    interval(contrast.interval),
                    p_value(contrast.p),
                    p_value(contrast.p_holm),
                    p_value(contrast.haar.p if contrast.haar else None),
                    number(contrast.adjusted),
                )
            )
        caution = f" (confounded with {', '.join(rivals)})" if rivals else ""
        title = f"{spec.metric}: {spec.name}{caution}{'' if place > 1 else CONTRASTS_NOTE}"
        tables.append(TextTable(name=f"contrast-{place}", title=title, header=header, rows=rows))
    return tables


def specificity_table(analysis: Analysis) -> TextTable:
    """How well the cosine, and each trivial score, tells hacked from clean samples."""
    rows = [
        (
            area.score,
            str(area.n_hacked),
            str(area.n_clean),
            str(area.num_prompts),
            share(area.auroc),
            share_interval(area.interval),
        )
        for area in analysis.specificity
    ]
    title = f"AUROC for hacked among A > 0 (arm {analysis.measured_arm}; interval: over prompts)"
    header = ("score", "hacked", "clean", "prompts", "AUROC", "95% interval")
    return TextTable(name="specificity", title=title, header=header, rows=rows)


def module_table(analysis: Analysis) -> TextTable:
    """The modules whose cosine is furthest from the null of permuted labels."""
    drawn = [] if analysis.permutation is None else analysis.permutation.modules
    ordered = sorted(drawn, key=lambda module: -abs(module.z))
    rows = [
        (short(module.module, 60), number(module.mean_cos), number(module.z, 1), p_value(module.p_max_t))
        for module in ordered[:MOST_MODULES]
    ]
    more = f"; {len(ordered) - MOST_MODULES} more in --json" if len(ordered) > MOST_MODULES else ""
    title = f"Modules (mean cos_in over prompts; z: N2; p: max-T over {len(ordered)} modules{more})"
    return TextTable(name="modules", title=title, header=("module", "cos_in", "z", "p"), rows=rows)


def _haar(step: StepRecord) -> HaarTest | None:
    return haar_test(step.cos_in, step.haar_sd) if step.cos_in is not None and step.haar_sd else None


def step_table(analysis: Analysis) -> TextTable:
    """Every step of every arm."""
    rows = [
        (
            str(step.step),
            step.arm,
            short(step.problem_id, 16),
            number(step.cos_in),
            *((number(haar.z, 1), p_value(haar.p)) if (haar := _haar(step)) else ("-", "-")),
            number(step.cos_out),
            share(step.hackward_frac_in),
            share(step.frac_fired),
            f"{step.reward_spread:.2f}",
        )
        for step in analysis.steps
    ]
    header = ("step", "arm", "problem", "cos_in", "Haar z", "p", "cos_out", "hackward", "fired", "spread")
    title = "Steps (Haar z of cos_in; '-' where a cosine does not exist)"
    return TextTable(name="steps", title=title, header=header, rows=rows, left=3)
