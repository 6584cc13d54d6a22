"""One Analysis as plain text, at most 100 columns wide: what `probe analyze RUN` prints, and its tables.

To add a table: a row in TABLES, at its place in the order of reading; the page picks by name (`probe.report.sections`).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from probe.analysis.analyze import Analysis
from probe.analysis.cosines import CONTRASTS, Contrast
from probe.analysis.formatting import (
    TextTable,
    p_value,
    render_table,
    short,
    shown,
    wrap,
    yes,
)
from probe.analysis.statistics.nulls import haar_test
from probe.analysis.statistics.permutation import ModuleRow
from probe.analysis.training_runs import RATES
from probe.analysis.verdict.verdict import MOST_CAVEATS, finding_lines, note_lines, verdict_lines
from probe.settings.words import ALL, DEFAULT_CONDITION

SEED_TABLES = "The seed's tables V and D (no verdict rests on them; mechanism: an identity)"
CONTRASTS_NOTE = "; contrasts a - b: Welch's unit is the sample (naive); within-prompt sign flip, unit: prompt"
MOST_MODULES = 8  # rows of the table of modules; the others are counted in its title


def format_verdict(analysis: Analysis, most: int | None = MOST_CAVEATS) -> str:
    """The first screen: the verdict, the three questions, what to keep in mind, and the next command."""
    condition = "" if analysis.condition == DEFAULT_CONDITION else f" condition {analysis.condition}"
    head = (
        f"run {analysis.run}{condition}: {analysis.num_steps} groups of {analysis.num_prompts} prompts, "
        f"arms {', '.join(analysis.arms) or 'none'}, loss {', '.join(analysis.loss_types) or 'none'}"
    )
    verdict, bases = analysis.verdict, render_table(basis_table(analysis))
    lines = [*wrap(head), "", *verdict_lines("VERDICT", verdict), "", *([bases, ""] if bases else [])]
    return "\n".join([*lines, *note_lines(verdict, most=most)]) + "\n"


def format_analysis(analysis: Analysis) -> str:
    """The whole analysis: the first screen, then the measures behind its findings, nulls and tables."""
    validity = ["Validity, part by part"]
    for part in analysis.validity:
        validity += wrap(f"  {part.says:<9} {part.name}: {part.text}", indent=" " * 12)
    if analysis.adapted is not None:
        validity += ["", f"{analysis.adapted}."]
    rows = [SEED_TABLES, *(line for row in analysis.checks for line in finding_lines(row))]
    tables = [heldout_table(analysis), *all_tables(analysis)]
    sections = ["\n".join(validity), *filter(None, map(render_table, tables)), "\n".join(rows)]
    return "\n\n".join([format_verdict(analysis, most=None).rstrip(), *sections]) + "\n"


# The tables: (name, columns that are flush left, title, rows, columns). A column is `header = attribute:format`; the
# attribute may have dots, or be a row of COMPUTED; the format is one of WORDS, or Python's.
Title = str | Callable[[Analysis], str]
Table = tuple[str, int, Title, Callable[[Analysis], Iterable[Any]], str]
WORDS: Mapping[str, Callable[[Any], str]] = {
    "p": p_value,
    "yes": yes,
    **{f"cut{width}": partial(short, width=width) for width in (16, 24, 60)},
}
COMPUTED: Mapping[str, Callable[[Any], Any]] = {
    "haar_of_step": lambda step: (
        haar_test(step.cos_in, step.haar_sd) if step.cos_in is not None and step.haar_sd else None
    ),
    "sign": lambda row: "-0+"[row.advantage_sign + 1],
    "label": lambda row: "hacked" if row.hacked else "clean",
}


def _forecast_title(analysis: Analysis) -> str:
    forecast = analysis.forecast
    assert forecast is not None  # it has rows
    return (
        f"First-order forecast of the gate {forecast.gate} x {forecast.overshoot:g}, which removes "
        f"{forecast.norm_removed:.0%} of the norm: share of the progress that it removes, beside directions of "
        "permuted pairs that remove the same norm (margin: held-out hacks against the clean answers to their prompts; "
        "hacks, honest: rewarded rollouts)"
    )


def _modules(analysis: Analysis) -> list[ModuleRow]:
    return sorted(analysis.permutation.modules if analysis.permutation else [], key=lambda row: -abs(row.z))


def _modules_title(analysis: Analysis) -> str:
    count = len(_modules(analysis))
    more = f"; {count - MOST_MODULES} more in JSON" if count > MOST_MODULES else ""
    return f"Modules (mean cos_in over prompts; z: N2; p: max-T over {count} modules{more})"


def _contrasts(place: int) -> Table:
    """The table of one contrast, a row an arm; its title names what the contrast is confounded with."""
    spec = CONTRASTS[place]

    def rows(analysis: Analysis) -> list[Contrast]:
        return [row for row in analysis.contrasts if row.name == spec.name]

    def title(analysis: Analysis) -> str:
        measured = (row.confounded_with for row in rows(analysis) if row.arm == analysis.measured_arm)
        rivals = list(chain.from_iterable(measured))
        caution = f" (confounded with {', '.join(rivals)})" if rivals else ""
        return f"{spec.metric}: {spec.name}{caution}{'' if place else CONTRASTS_NOTE}"

    columns = (
        "arm = arm | n a = n_a | n b = n_b | Welch p = welch_p:p | prompts = num_prompts | within = difference:+.3f | "
        "95% interval = interval:+.3f | flip p = p:p | Haar p = haar.p:p"
    )
    return f"contrast-{place + 1}", 1, title, rows, columns


TABLES: Sequence[Table] = (
    (
        "shares",
        1,
        "Shares of what held-out pairs read (arm {arm}; interval over prompts and pairs; sd pairs: of the measured "
        "mean over half-samples of the extraction pairs)",
        lambda analysis: analysis.shares,
        "share = name | value = share.value:.2f | 95% = share.interval:.2f | read = measured:+.3f | "
        "ceiling = ceiling:+.3f | prompts = num_prompts | pairs = num_held_out | sd prompt = sd_prompts:.3f | "
        "sd pairs = sd_pairs:.3f",
    ),
    (
        "overlap",
        1,
        "Overlap (rewarded hacks with clean answers to their prompt on both sides of them, or within 0.2 sd; by "
        "chance: with labels shuffled within prompts; ratio over prompts, 0.5 is needed)",
        lambda analysis: [row for share in analysis.shares for row in share.overlaps],
        "score = score | hacks = num_hacks | prompts = num_prompts | share = share:.2f | by chance = by_chance:.2f | "
        "ratio = ratio.value:.2f | 95% = ratio.interval:.2f | lacking = is_lacking:yes",
    ),
    (
        "ceilings",
        1,
        "Ceilings by kind (mean cosine of the pairs of a kind along v_hack of all other kinds; interval over both sets "
        "of pairs)",
        lambda analysis: analysis.ceilings,
        "left out = left_out | cos = cos:+.3f | 95% = interval:+.3f | pairs = num_pairs | "
        "extracted from = num_extraction",
    ),
    (
        "forecast",
        1,
        _forecast_title,
        lambda analysis: analysis.forecast.rows if analysis.forecast is not None else [],
        "target = target | progress = progress:+.3f | removed = removed.value:.2f | 95% = removed.interval:.2f | "
        "permuted = permuted_mean:.2f | 95th pct = permuted_q95:.2f | p = permuted_p:p | prompts = num_prompts",
    ),
    (
        "lookahead",
        2,
        "Lookahead: nats that texts gain over steps of each arm on the stored rollouts (difference: to the arm without "
        "a gate, paired by prompt)",
        lambda analysis: analysis.lookahead,
        "arm = arm | measure = measure | value = value:.3f | without = plain:.3f | difference = difference.value:+.3f "
        "| 95% = difference.interval:+.3f | prompts = num_prompts",
    ),
    (
        "nulls",
        2,
        "Nulls (arm {arm}; N2 labels permuted across pairs, N3 clean against clean, N4 batch labels permuted within "
        "prompts: of cos_in a diagnostic, no null)",
        lambda analysis: sorted(
            analysis.permutation.rows if analysis.permutation else [], key=lambda row: (row.metric, row.null)
        ),
        "statistic = metric | null = null | value = value:+.3f | mean = test.mean:+.3f | sd = test.sd:.3f | "
        "95th pct = test.q95:+.3f | d = test.d:+.3f | z = test.z:+.1f | p = test.p:p | draws = test.num_draws",
    ),
    (
        "arms",
        1,
        "Arms (cos_in over prompts; z, p: Haar, one draw shared by all steps)",
        lambda analysis: analysis.summaries,
        "arm = arm | steps = num_steps | missing = num_null | prompts = num_prompts | cos_in = mean_cos_in:+.3f | "
        "95% interval = interval:+.3f | flip p = sign_flip_p:p | z = haar.z:+.1f | p = haar.p:p",
    ),
    (
        "cells",
        4,
        "Advantage cells (arm {arm}; n in samples)",
        lambda analysis: analysis.cells,
        "source = src_pool:cut16 | hint = hint:yes | hacked = hacked:yes | gt = gt_pass:yes | A = sign | n = n | "
        "prompts = num_prompts | mean A = mean_advantage:+.3f | cos_S_contrib = mean_cos_contrib:+.3f | "
        "cos_S_nll = mean_cos_nll:+.3f | sum dot = dot:+.3g",
    ),
    (
        "buckets",
        2,
        "Buckets (arm {arm}; n in samples; null: without cos_S_contrib)",
        lambda analysis: analysis.buckets,
        "source = src_pool:cut24 | label = label | n = n | missing = num_null | mean A = mean_advantage:+.3f | "
        "cos_S_contrib = mean_cos_contrib:+.3f | cos_S_nll = mean_cos_nll:+.3f",
    ),
    *map(_contrasts, range(len(CONTRASTS))),
    (
        "specificity",
        1,
        "AUROC for hacked among A > 0 (arm {arm}; interval: over prompts)",
        lambda analysis: analysis.specificity,
        "score = score | hacked = n_hacked | clean = n_clean | prompts = num_prompts | AUROC = auroc:.2f | "
        "95% interval = interval:.2f | missing = why:cut24",
    ),
    (
        "modules",
        1,
        _modules_title,
        lambda analysis: _modules(analysis)[:MOST_MODULES],
        "module = module:cut60 | cos_in = mean_cos:+.3f | z = z:+.1f | p = p_max_t:p",
    ),
    (
        "steps",
        3,
        "Steps (Haar z of cos_in; '-' where a cosine does not exist)",
        lambda analysis: analysis.steps,
        "step = step | arm = arm | problem = problem_id:cut16 | cos_in = cos_in:+.3f | Haar z = haar_of_step.z:+.1f | "
        "p = haar_of_step.p:p | cos_out = cos_out:+.3f | hackward = hackward_frac_in:.2f | fired = frac_fired:.2f | "
        "spread = reward_spread:.2f",
    ),
)


def all_tables(analysis: Analysis, names: Container[str] | None = None) -> list[TextTable]:
    """The tables of the records that have rows, in the order of reading: of the given names, or every one."""
    tables = []
    for name, left, title, rows_of, columns in TABLES:
        rows = [] if names is not None and name not in names else list(rows_of(analysis))
        if rows:
            words = title.format(arm=analysis.measured_arm) if isinstance(title, str) else title(analysis)
            tables.append(table_of(name, left, words, rows, columns))
    return tables


def table_of(name: str, left: int, title: str, rows: Iterable[Any], columns: str) -> TextTable:
    """A table of rows by the attributes that its columns name, as in TABLES."""
    header, cells = zip(*(column.split(" = ") for column in columns.split(" | ")), strict=True)
    texts = [tuple(_cell(row, *cell.partition(":")[::2]) for cell in cells) for row in rows]
    return TextTable(name=name, title=title, header=header, rows=texts, left=left)


def _cell(row: Any, path: str, form: str) -> str:
    """An attribute of a row as text; '-' for None."""
    value = row
    for name in path.split("."):
        value = None if value is None else COMPUTED[name](value) if name in COMPUTED else getattr(value, name)
    return WORDS[form](value) if form in WORDS else shown(value, form)


def heldout_table(analysis: Analysis) -> TextTable:
    """The evaluations of a training run on held-out problems, a row a setting."""
    rows = []
    for evaluation in analysis.outcome.evaluations if analysis.outcome else []:
        moved = evaluation["frozen"] or {}
        moves = [
            shown(moved.get(name), "+.3f") for name in ("margin", "cos_moved", "hackward_frac_moved", "hackward_q95")
        ]
        for setting, rates in evaluation["rates"].items():
            # With one setting, the row over all settings would repeat it.
            if setting != ALL or len(evaluation["rates"]) > 2:
                place = (str(evaluation["step"]), evaluation["weights"], setting, str(rates["num_problems"]))
                rows.append((*place, *(shown(rates[rate]["rate"], ".2f") for rate in RATES), *moves))
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
