"""The rollouts: which tokens and lines push hack-ward, and every completion with its tokens coloured."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from probe.analysis.formatting import TextTable, short
from probe.report.markup import node, to_html
from probe.report.panel import signed
from probe.report.rollouts import Rollouts, Shown, telling
from probe.report.sections.parts import Section, heading, prose, table_html
from probe.report.sections.rollout import SHARE_UNIT, rollout
from probe.report.strings import Push, pushes

LEAD = (
    "Orange pushes hack-ward, blue clean-ward. A token's share belongs to the position where it is read and the "
    "next token predicted; the shares of prompt and completion add up to the rollout's cos_S_nll. Through attention"
    " a position also carries the losses of all later tokens that looked back at it: a share is not the effect of "
    "one token's loss, and not what the rollout without that token would give."
)
ABSENT = (
    "No shares of tokens were recorded: probe replay and probe train record them with --token-attribution, and "
    "completions are then coloured by them."
)
STRINGS = (
    "Push: the sum of a string's shares in a rollout times the sign of its advantage, mean over prompts: its part "
    "of the mean cos_S_contrib. Strings that occur in one prompt alone are left out."
)
MOST_STRINGS, LEAST_PUSH = 10, 5e-5  # what four decimals show
LONGEST_STRING = 120  # characters


def rollouts(found: Sequence[Rollouts], budget: int) -> tuple[Section, set[str]]:
    """The section, and the anchors that it holds.

    Args:
        found: the rollouts of each run.
        budget: bytes of HTML for the rollouts of all runs.
    """
    body: list[Element] = []
    tables: dict[str, list[TextTable]] = {}
    anchors: set[str] = set()
    for own in found:
        body += heading(own.run.path.name, len(found) > 1)
        body += [prose(sentence, class_="caution") for sentence in own.missing]
        if any(one.tokens is not None for one in own.shown):
            tables[own.run.path.name] = _string_tables(own.shown)
            body += [node("h3", "What pushes, over all rollouts"), prose(STRINGS, class_="soft-text")]
            body.append(node("div", *map(table_html, tables[own.run.path.name]), class_="strings"))
        else:
            body.append(prose(ABSENT, class_="empty"))
        shown = _within(own.shown, budget // len(found))
        anchors |= {one.anchor for one, _ in shown}
        listed = _list(own, shown)
        body += listed if len(found) == 1 else [_fold(f"{len(shown)} rollouts of {own.run.path.name}", listed)]
    section = Section(id="rollouts", title="Rollouts and tokens", lead=LEAD, body=body, tables=tables)
    return section, anchors


def _fold(words: str, content: Sequence[Element]) -> Element:
    return node("details", node("summary", words), *content, class_="fold wide")


def _within(shown: Sequence[Shown], budget: int) -> list[tuple[Shown, Element]]:
    """The most telling rollouts that fit the budget, in order of step and sample."""
    kept, left = [], budget
    scale = _scale(shown)
    for one in telling(shown):
        element = rollout(one, scale)
        left -= len(to_html(element).encode())
        if left < 0:
            break
        kept.append((one, element))
    return sorted(kept, key=lambda pair: (pair[0].sample.step, pair[0].sample.sample_id))


def _list(own: Rollouts, shown: Sequence[tuple[Shown, Element]]) -> list[Element]:
    """Filters and the rollouts."""
    if not shown:
        return [prose("No rollout can be shown.", class_="empty")]
    count = f"{len(shown)} rollouts"
    if len(shown) < len(own.shown):
        count = f"{len(shown)} of {len(own.shown)} rollouts, those with the largest cosines of each source and label"
    sources = list(dict.fromkeys(one.sample.src_pool for one, _ in shown))
    buttons = [("all", ""), ("hacked", "hacked"), ("clean", "clean"), *((name, f"source:{name}") for name in sources)]
    filters = [
        node("button", text, type="button", data_filter=key, aria_pressed="true" if not key else "false")
        for text, key in buttons
        if len(sources) > 1 or not key.startswith("source:")
    ]
    largest = _largest_share([one for one, _ in shown])
    return [
        *([] if largest is None else [_legend(largest)]),
        node("div", *filters, node("span", count, class_="soft-text", role="status"), class_="filters"),
        node(
            "div",
            *(element for _, element in shown),
            class_="rollouts",
            data_scale=None if largest is None else round(largest / SHARE_UNIT),
        ),
    ]


def _largest_share(shown: Sequence[Shown]) -> float | None:
    """What gets the full colour: the 99th percentile of |share| over all tokens that are shown."""
    shares = [
        abs(s) for one in shown if one.tokens for s in (*(one.tokens.prompt or ()), *(one.tokens.completion or ()))
    ]
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


def _scale(shown: Sequence[Shown]) -> float:
    return max((abs(one.cosine) for one in shown), default=0.0) or 1.0


def _string_tables(shown: Sequence[Shown]) -> list[TextTable]:
    """The strings that push most, in both directions, by line and by token."""
    found = []
    for name, by_line in (("lines", True), ("tokens", False)):
        ranked = pushes(shown, by_line=by_line)
        for side, rows in (
            ("hack-ward", [row for row in ranked if row.push > LEAST_PUSH][:MOST_STRINGS]),
            ("clean-ward", [row for row in reversed(ranked) if row.push < -LEAST_PUSH][:MOST_STRINGS]),
        ):
            title = f"{name.capitalize()} that push the update {side}"
            cells = [_string_row(row) for row in rows]
            found.append(
                TextTable(name=f"{name}-{side}", title=title, header=("string", "push", "times", "prompts"), rows=cells)
            )
    return [table for table in found if table.rows]


def _string_row(row: Push) -> tuple[str, ...]:
    """The string with its white space made visible: newlines and tabs always, spaces where there is nothing else."""
    text = row.text.replace("\n", "\u21b5").replace("\t", "\u21e5")
    text = text.replace(" ", "\u00b7") if not row.text.strip() else text
    return short(text, LONGEST_STRING), signed(row.push, 4), str(row.count), str(row.num_prompts)
