"""The tables of an Analysis, and format_analysis: all of it as plain text, at most 100 columns wide."""

from collections.abc import Sequence

from probe.analysis.analyze import Analysis
from probe.analysis.evidence_tables import comparisons, heldout, modules, nulls, parts, sensitivity
from probe.analysis.formatting import TextTable, area, interval, number, p_value, render_table, share, short, wrap, yes
from probe.analysis.measures.contrasts import CONTRASTS
from probe.analysis.measures.trajectory import ArmSummary
from probe.analysis.verdict.evidence import VerdictRow
from probe.records.records import DEFAULT_CONDITION


def all_tables(analysis: Analysis) -> list[TextTable]:
    """Every table that has rows, in the order of reading."""
    found = [
        nulls(analysis),
        _summaries(analysis),
        comparisons(analysis),
        _gates(analysis),
        _cells(analysis),
        _buckets(analysis),
        *_contrasts(analysis),
        _specificity(analysis),
        modules(analysis),
        sensitivity(analysis),
        _trajectory(analysis),
    ]
    return [table for table in found if table.rows]


def format_analysis(analysis: Analysis) -> str:
    """The whole analysis: the verdict first, then its reasons, then the tables that they rest on; the verdict again."""
    condition = "" if analysis.condition == DEFAULT_CONDITION else f" condition {analysis.condition}"
    head = (
        f"run {analysis.run}{condition}: {analysis.num_steps} steps, {analysis.num_prompts} prompts, "
        f"arms {', '.join(analysis.arms) or 'none'}, loss {', '.join(analysis.loss_types) or 'none'}"
    )
    verdict = f"VERDICT (R6): {analysis.decision.outcome}: {analysis.decision.why}"
    sections = [
        "\n".join(wrap(head)),
        "\n".join(wrap(verdict, indent="  ")),
        "\n".join(line for sentence in analysis.conclusions for line in wrap(f"- {sentence}", indent="  ")),
        _checks("Rules R0 to R7 (METHOD section 7; mechanism rows are no evidence)", analysis.rules),
        parts(analysis),
        render_table(heldout(analysis)),
        render_table(nulls(analysis)),
        _checks(
            "Verification (the seed's table V and decision rules D; mechanism rows are no evidence)", analysis.checks
        ),
        *map(render_table, (_summaries(analysis), comparisons(analysis), _gates(analysis))),
        *map(render_table, (_cells(analysis), _buckets(analysis))),
        _contrasts_text(_contrasts(analysis)),
        *map(render_table, (_specificity(analysis), modules(analysis), sensitivity(analysis), _trajectory(analysis))),
        "\n".join(wrap(f"again, {verdict}", indent="  ")),  # where a terminal has scrolled to
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _checks(title: str, checks: Sequence[VerdictRow]) -> str:
    lines = [title]
    for c in checks:
        lines += wrap(f"  {c.row:<4}{c.verdict:<13}{c.kind:<10} {c.condition}", indent=" " * 28)
        value = f"{c.value}; " if c.value else ""
        lines += wrap(f"      n = {c.n} {c.unit}s: {value}{c.why}", indent=" " * 6)
    return "\n".join(lines)


def _summaries(a: Analysis) -> TextTable:
    header = ("arm", "steps", "null", "prompts", "cos_in", "95% interval", "flip p", "z", "p", "z ind")
    title = "Arms (cos_in over prompts; z, p: Haar, one draw shared by all steps; z ind: a draw a step, optimistic)"
    return TextTable(name="arms", title=title, header=header, rows=[_summary(s) for s in a.summaries])


def _summary(s: ArmSummary) -> tuple[str, ...]:
    return (
        s.arm,
        str(s.num_steps),
        str(s.num_null),
        str(s.num_prompts),
        number(s.mean_cos_in),
        interval(s.interval),
        p_value(s.sign_flip_p),
        number(s.haar.shared.z if s.haar else None, 1),
        p_value(s.haar.shared.p if s.haar else None),
        number(s.haar.independent.z if s.haar else None, 1),
    )


def _gates(a: Analysis) -> TextTable:
    header = ("arm", "cos_out", "cos_out < cos_in", "frac_fired", "hackward_frac_in", "cos_update")
    rows = [
        (
            s.arm,
            number(s.mean_cos_out),
            f"{s.num_lowered}/{s.num_steps - s.num_null}",
            share(s.mean_frac_fired),
            share(s.mean_hackward_frac_in),
            number(s.mean_cos_update),
        )
        for s in a.summaries
    ]
    title = "Gates (means over steps; mechanism, no evidence but for cos_update)"
    return TextTable(name="gates", title=title, header=header, rows=rows)


def _cells(a: Analysis) -> TextTable:
    header = ("source", "hint", "hacked", "gt", "A", "n", "prompts", "mean A", "cos_S_contrib", "cos_S_nll", "sum dot")
    rows = [
        (
            short(c.src_pool, 16),
            yes(c.hint),
            yes(c.hacked),
            yes(c.gt_pass),
            "-0+"[c.advantage_sign + 1],
            str(c.n),
            str(c.num_prompts),
            number(c.mean_advantage),
            number(c.mean_cos_contrib),
            number(c.mean_cos_nll),
            f"{c.dot:+.3g}",
        )
        for c in a.cells
    ]
    title = f"Advantage cells (arm {a.measured_arm}; n in samples)"
    return TextTable(name="cells", title=title, header=header, rows=rows, left=4)


def _buckets(a: Analysis) -> TextTable:
    header = ("metric", "source", "label", "n", "null", "mean", "sd")
    rows = [
        (b.metric, short(b.src_pool, 24), "hacked" if b.hacked else "clean", str(b.n), str(b.num_null))
        + ((number(b.mean), "-" if b.sd is None else f"{b.sd:.3f}") if b.n else ("empty", "-"))
        for b in a.buckets
        if b.arm == a.measured_arm
    ]
    title = f"Buckets (arm {a.measured_arm}; unit: sample)"
    return TextTable(name="buckets", title=title, header=header, rows=rows, left=3)


def _contrasts(a: Analysis) -> list[TextTable]:
    header = (
        "arm",
        "n a",
        "n b",
        "Welch p",
        "prompts",
        "within",
        "95% interval",
        "flip p",
        "Holm",
        "Haar p",
        "adj",
    )
    tables = []
    for place, spec in enumerate(CONTRASTS, 1):
        rows = [
            (
                c.arm,
                str(c.n_a),
                str(c.n_b),
                p_value(c.welch_p),
                str(c.num_prompts),
                number(c.difference),
                interval(c.interval),
                p_value(c.p),
                p_value(c.p_holm),
                p_value(c.haar.p if c.haar else None),
                number(c.adjusted.effect),
            )
            for c in a.contrasts
            if c.name == spec.name
        ]
        own = next((c for c in a.contrasts if c.name == spec.name and c.arm == a.measured_arm), None)
        rivals = [spec.caveat] * bool(spec.caveat) + list(own.confounded_with if own else ())
        caution = f" (confounded with {', '.join(rivals)})" if rivals else ""
        title = f"{spec.metric}: {spec.name}{caution}"
        tables.append(TextTable(name=f"contrast-{place}", title=title, header=header, rows=rows))
    return tables


def _contrasts_text(tables: Sequence[TextTable]) -> str:
    """The tables under their common title."""
    if not any(table.rows for table in tables):
        return ""
    title = (
        "Contrasts a - b: Welch's unit is the sample (naive); within-prompt sign flip, unit: prompt; Holm: over the "
        "contrasts of an arm; adj: regression within prompts on source, gt_pass, log length and hint"
    )
    return "\n".join([*wrap(title), *map(render_table, tables)])


def _specificity(a: Analysis) -> TextTable:
    rows = [
        (s.score, str(s.n_hacked), str(s.n_clean), str(s.num_prompts), share(s.auroc), area(s.interval))
        for s in a.specificity
    ]
    title = f"AUROC for hacked among A > 0 (arm {a.measured_arm}; interval: bootstrap over prompts)"
    header = ("score", "hacked", "clean", "prompts", "AUROC", "95% interval")
    return TextTable(name="specificity", title=title, header=header, rows=rows)


def _trajectory(a: Analysis) -> TextTable:
    header = ("step", "arm", "problem", "cos_in", "Haar z", "p", "cos_out", "hackward", "fired", "spread")
    rows = [
        (
            str(t.step),
            t.arm,
            short(t.problem_id, 16),
            number(t.cos_in),
            number(t.haar_z, 1),
            p_value(t.haar_p),
            number(t.cos_out),
            share(t.hackward_frac_in),
            share(t.frac_fired),
            f"{t.reward_spread:.2f}",
        )
        for t in a.trajectory
    ]
    title = "Steps (Haar z of cos_in; '-' where a cosine does not exist)"
    return TextTable(name="steps", title=title, header=header, rows=rows, left=3)
