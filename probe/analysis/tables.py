"""format_analysis: an Analysis as plain text, at most 100 columns wide."""

import textwrap
from collections.abc import Sequence

from probe.analysis.analyze import Analysis
from probe.analysis.contrasts import CONTRASTS
from probe.analysis.stats import Interval
from probe.analysis.trajectory import ArmSummary
from probe.records import DEFAULT_CONDITION

WIDTH = 100


def format_analysis(analysis: Analysis) -> str:
    """The whole analysis: conclusions first, then the tables that they rest on."""
    condition = "" if analysis.condition == DEFAULT_CONDITION else f" condition {analysis.condition}"
    head = (
        f"run {analysis.run}{condition}: {analysis.num_steps} steps, {analysis.num_prompts} prompts, "
        f"arms {', '.join(analysis.arms) or 'none'}, loss {', '.join(analysis.loss_types) or 'none'}"
    )
    sections = [
        "\n".join(wrap(head)),
        "\n".join(line for sentence in analysis.conclusions for line in wrap(f"- {sentence}", indent="  ")),
        _checks(analysis),
        _summaries(analysis),
        _gates(analysis),
        _cells(analysis),
        _buckets(analysis),
        _contrasts(analysis),
        _specificity(analysis),
        _trajectory(analysis),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def render_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Aligned columns under a title: the first `left` columns flush left, the others flush right; '' without rows."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    ]
    return "\n".join([*wrap(title), *(f"  {line}".rstrip() for line in lines)])


def wrap(text: str, *, indent: str = "") -> list[str]:
    """Lines of at most WIDTH columns; later lines start with `indent`."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent)


def number(value: float | None, digits: int = 3) -> str:
    """A signed number, or '-' for null."""
    return "-" if value is None else f"{value:+.{digits}f}"


def share(value: float | None) -> str:
    """A number in [0, 1], or '-' for null."""
    return "-" if value is None else f"{value:.2f}"


def p_value(value: float | None) -> str:
    """A p-value to two digits, or '-' for null; below 1e-9 the exact size says nothing."""
    return "-" if value is None else "<1e-9" if value < 1e-9 else f"{value:.2g}"


def interval(value: Interval | None) -> str:
    """[low, high], or '-' for null."""
    return "-" if value is None else f"[{value.low:+.3f}, {value.high:+.3f}]"


def _checks(a: Analysis) -> str:
    lines = ["Verification (the seed's table V and decision rules D; mechanism rows are no evidence)"]
    for c in a.checks:
        lines += wrap(f"  {c.row:<4}{c.verdict:<13}{c.kind:<10} {c.condition}", indent=" " * 28)
        value = f"{c.value}; " if c.value else ""
        lines += wrap(f"      n = {c.n} {c.unit}s: {value}{c.why}", indent=" " * 6)
    return "\n".join(lines)


def _summaries(a: Analysis) -> str:
    header = ("arm", "steps", "null", "prompts", "cos_in", "95% interval", "flip p", "z", "p", "z ind")
    return render_table(
        "Arms (cos_in over prompts; z, p: Haar, one draw shared by all steps; z ind: a draw a step, optimistic)",
        header,
        [_summary(s) for s in a.summaries],
    )


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


def _gates(a: Analysis) -> str:
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
    return render_table("Gates (means over steps; mechanism, no evidence but for cos_update)", header, rows)


def _cells(a: Analysis) -> str:
    header = ("source", "hint", "hacked", "gt", "A", "n", "prompts", "mean A", "cos_S_contrib", "cos_S_nll", "sum dot")
    rows = [
        (
            _short(c.src_pool, 16),
            _yes(c.hint),
            _yes(c.hacked),
            _yes(c.gt_pass),
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
    return render_table(f"Advantage cells (arm {a.measured_arm}; n in samples)", header, rows, left=4)


def _buckets(a: Analysis) -> str:
    header = ("metric", "source", "label", "n", "null", "mean", "sd")
    rows = [
        (b.metric, _short(b.src_pool, 24), "hacked" if b.hacked else "clean", str(b.n), str(b.num_null))
        + ((number(b.mean), "-" if b.sd is None else f"{b.sd:.3f}") if b.n else ("empty", "-"))
        for b in a.buckets
        if b.arm == a.measured_arm
    ]
    return render_table(f"Buckets (arm {a.measured_arm}; unit: sample)", header, rows, left=3)


def _contrasts(a: Analysis) -> str:
    header = ("arm", "n a", "n b", "Welch t", "p", "prompts", "within", "95% interval", "flip p", "Haar p")
    tables = []
    for spec in CONTRASTS:
        rows = [
            (
                c.arm,
                str(c.n_a),
                str(c.n_b),
                number(c.welch_t, 2),
                p_value(c.welch_p),
                str(c.num_prompts),
                number(c.difference),
                interval(c.interval),
                p_value(c.p),
                p_value(c.haar.p if c.haar else None),
            )
            for c in a.contrasts
            if c.name == spec.name
        ]
        own = next((c for c in a.contrasts if c.name == spec.name and c.arm == a.measured_arm), None)
        rivals = [spec.caveat] * bool(spec.caveat) + list(own.confounded_with if own else ())
        caution = f" (confounded with {', '.join(rivals)})" if rivals else ""
        tables.append(render_table(f"{spec.metric}: {spec.name}{caution}", header, rows))
    if not any(tables):
        return ""
    title = "Contrasts a - b: Welch's unit is the sample (naive); within-prompt sign flip, unit: prompt"
    return "\n".join([title, *tables])


def _specificity(a: Analysis) -> str:
    rows = [
        (s.score, str(s.n_hacked), str(s.n_clean), str(s.num_prompts), share(s.auroc), _area(s.interval))
        for s in a.specificity
    ]
    title = f"AUROC for hacked among A > 0 (arm {a.measured_arm}; interval: bootstrap over prompts)"
    return render_table(title, ("score", "hacked", "clean", "prompts", "AUROC", "95% interval"), rows)


def _trajectory(a: Analysis) -> str:
    header = ("step", "arm", "problem", "cos_in", "Haar z", "p", "cos_out", "hackward", "fired", "spread")
    rows = [
        (
            str(t.step),
            t.arm,
            _short(t.problem_id, 16),
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
    return render_table("Steps (Haar z of cos_in; '-' where a cosine does not exist)", header, rows, left=3)


def _area(value: Interval | None) -> str:
    return "-" if value is None else f"[{value.low:.2f}, {value.high:.2f}]"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 2]}.."


def _yes(value: bool) -> str:
    return "yes" if value else "no"
