"""The rollouts section: which tokens and lines push hack-ward, and every completion with its tokens coloured."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from probe.analysis.formatting import TextTable, short
from probe.report.figures.panel import signed
from probe.report.html import node, to_html
from probe.report.rollouts import Push, RunRollouts, ShownRollout, largest_cosines_first, pushes
from probe.report.sections.base import Section, heading, paragraph, table_html
from probe.report.sections.rollout_details import SHARE_UNIT, rollout_details

LEAD = (
    "Orange pushes hack-ward, blue clean-ward. A token's share belongs to the position where it is read and the "
    "next token predicted; the shares of prompt and completion add up to the rollout's cos_S_nll. Through attention"
    " a position also carries the losses of all later tokens that looked back at it: a share is not the effect of "
    "one token's loss, and not what the rollout without that token would give."
)
ABSENT = (
    "No shares of tokens were recorded: probe replay and probe train record them with --set token_attribution=N, and "
    "completions are then coloured by them."
)
STRINGS = (
    "Push: the sum of a string's shares in a rollout times the sign of its advantage, mean over prompts: its part "
    "of the mean cos_S_contrib. Strings that occur in one prompt alone are left out."
)
MOST_STRINGS = 10  # of each table
LEAST_PUSH = 5e-5  # smaller pushes are 0 in the four decimals of a table
LONGEST_STRING = 120  # characters


def rollouts(rollouts_by_run: Sequence[RunRollouts], budget: int) -> tuple[Section, set[str]]:
    """The section, and the anchors of the rollouts that it shows.

    Args:
        rollouts_by_run: the rollouts of each run.
        budget: bytes of HTML for the rollouts of all runs together.
    """
    many = len(rollouts_by_run) > 1
    body: list[Element] = []
    tables: dict[str, list[TextTable]] = {}
    anchors: set[str] = set()
    for run_rollouts in rollouts_by_run:
        name = run_rollouts.run.path.name
        body += heading(name, needed=many)
        body += [paragraph(sentence, class_="caution") for sentence in run_rollouts.missing]
        if any(shown.tokens is not None for shown in run_rollouts.shown):
            tables[name] = _string_tables(run_rollouts.shown)
            body += [node("h3", "What pushes, over all rollouts"), paragraph(STRINGS, class_="soft-text")]
            body.append(node("div", *map(table_html, tables[name]), class_="strings"))
        else:
            body.append(paragraph(ABSENT, class_="empty"))
        chosen = _choose(run_rollouts.shown, budget // len(rollouts_by_run))
        anchors |= {shown.anchor for shown, _ in chosen}
        listed = _list(chosen, len(run_rollouts.shown))
        if many:
            summary = node("summary", f"{len(chosen)} rollouts of {name}")
            listed = [node("details", summary, *listed, class_="fold wide")]
        body += listed
    section = Section(id="rollouts", title="Rollouts and tokens", lead=LEAD, body=body, tables=tables)
    return section, anchors


def _choose(shown: Sequence[ShownRollout], budget: int) -> list[tuple[ShownRollout, Element]]:
    """The rollouts with the largest cosines that fit `budget` bytes, in order of step and sample."""
    chosen, left = [], budget
    largest = max((abs(rollout.cosine) for rollout in shown), default=0.0) or 1.0
    for rollout in largest_cosines_first(shown):
        element = rollout_details(rollout, largest)
        left -= len(to_html(element).encode())
        # A smaller one further down might still fit, but then these would not be the largest cosines.
        if left < 0:
            break
        chosen.append((rollout, element))
    return sorted(chosen, key=lambda pair: (pair[0].sample.step, pair[0].sample.sample_id))


def _list(chosen: Sequence[tuple[ShownRollout, Element]], num_rollouts: int) -> list[Element]:
    """The legend, the filters and the chosen ones of `num_rollouts` rollouts."""
    if not chosen:
        return [paragraph("No rollout can be shown.", class_="empty")]
    count = f"{len(chosen)} rollouts"
    if len(chosen) < num_rollouts:
        count = f"{len(chosen)} of {num_rollouts} rollouts, those with the largest cosines of each source and label"
    largest = _largest_share([rollout for rollout, _ in chosen])
    scale = None if largest is None else round(largest / SHARE_UNIT)
    content = [] if largest is None else [_legend(largest)]
    status = node("span", count, class_="soft-text", role="status")
    content.append(node("div", *_filter_buttons([rollout for rollout, _ in chosen]), status, class_="filters"))
    # page.js finds the rollouts as the next sibling of the filters.
    content.append(node("div", *(element for _, element in chosen), class_="rollouts", data_scale=scale))
    return content


def _filter_buttons(shown: Sequence[ShownRollout]) -> list[Element]:
    """Buttons for the labels, and for the sources where there are several; page.js reads `data-filter`."""
    filters = [("all", ""), ("hacked", "hacked"), ("clean", "clean")]
    sources = list(dict.fromkeys(rollout.sample.src_pool for rollout in shown))
    if len(sources) > 1:
        filters += [(source, f"source:{source}") for source in sources]
    buttons = []
    for text, key in filters:
        pressed = "false" if key else "true"  # at first, all are shown
        buttons.append(node("button", text, type="button", data_filter=key, aria_pressed=pressed))
    return buttons


def _largest_share(shown: Sequence[ShownRollout]) -> float | None:
    """The share that gets the full colour: the 99th percentile of |share| over all tokens, or None without shares."""
    shares: list[float] = []
    for rollout in shown:
        if rollout.tokens is not None:
            shares += [abs(share) for share in rollout.tokens.prompt or ()]
            shares += [abs(share) for share in rollout.tokens.completion or ()]
    # At least one unit, because page.js divides by it.
    return max(float(np.quantile(shares, 0.99)), SHARE_UNIT) if shares else None


def _legend(largest: float) -> Element:
    """The colours of tokens."""
    swatches = [node("i", class_=f"n{level}") for level in range(5, 0, -1)]
    swatches += [node("i", class_=f"p{level}") for level in range(1, 6)]
    return node(
        "div",
        node("span", f"clean-ward {signed(-largest)}"),
        node("span", *swatches),
        node("span", f"{signed(largest)} hack-ward"),
        node("span", "(share of the rollout's cos_S_nll; open a rollout to see its tokens)"),
        class_="legend",
    )


def _string_tables(shown: Sequence[ShownRollout]) -> list[TextTable]:
    """The strings that push most, in both directions, by line and by token; tables without rows are left out."""
    tables = []
    for name, by_line in (("lines", True), ("tokens", False)):
        ranked = pushes(shown, by_line=by_line)
        hackward = [row for row in ranked if row.push > LEAST_PUSH][:MOST_STRINGS]
        cleanward = [row for row in reversed(ranked) if row.push < -LEAST_PUSH][:MOST_STRINGS]
        for side, rows in (("hack-ward", hackward), ("clean-ward", cleanward)):
            if rows:
                table = TextTable(
                    name=f"{name}-{side}",
                    title=f"{name.capitalize()} that push the update {side}",
                    header=("string", "push", "times", "prompts"),
                    rows=[_string_row(row) for row in rows],
                )
                tables.append(table)
    return tables


def _string_row(row: Push) -> tuple[str, ...]:
    """The string with its white space made visible: newlines and tabs always, spaces where there is nothing else."""
    text = row.text.replace("\n", "\u21b5").replace("\t", "\u21e5")
    if not row.text.strip():
        text = text.replace(" ", "\u00b7")
    return short(text, LONGEST_STRING), signed(row.push, 4), str(row.count), str(row.num_prompts)
