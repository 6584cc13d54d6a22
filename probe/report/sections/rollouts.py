"""The rollouts section: every completion to search, filter and compare, and which tokens and lines push hack-ward."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from probe.analysis.formatting import TextTable
from probe.report.facts import CLEAN, HACKED, UNLABELLED
from probe.report.figures.panel import signed
from probe.report.html import node
from probe.report.rollouts import RunRollouts
from probe.report.sections.base import Section, folded, heading, paragraph
from probe.report.strings import string_tables
from probe.report.viewer import viewer_data

LEAD = (
    "Search, filter and open what the policy wrote. Orange pushes hack-ward, blue clean-ward. The number of a row is "
    "its cos_S_contrib, the cosine of its part of the update with the direction."
)
SHARES = (
    "A token's share belongs to the position where it is read and the next token predicted; the shares of prompt and "
    "completion add up to the rollout's cos_S_nll. Through attention a position also carries the losses of all later "
    "tokens that looked back at it: a share is not the effect of one token's loss, and not what the rollout without "
    "that token would give."
)
ABSENT = (
    "No shares of tokens were recorded: probe replay and probe train record them with --set token_attribution=N, and "
    "completions are then coloured by them."
)
STRINGS = (
    "Push: the sum of a string's shares in a rollout times the sign of its advantage, mean over prompts: its part "
    "of the mean cos_S_contrib. Strings that occur in one prompt alone are left out."
)
NO_SCRIPT = "The rollouts are drawn by a script, which is turned off here. probe show prints them in the terminal."
ORDERS = {  # of viewer.js
    "hackward": "most hack-ward first",
    "cleanward": "most clean-ward first",
    "step": "step by step",
    "reward": "largest reward first",
    "advantage": "largest advantage first",
    "tokens": "longest first",
}


def rollouts(rollouts_by_run: Sequence[RunRollouts], budget: int) -> tuple[Section, set[str]]:
    """The section, and the anchors of the rollouts that it shows.

    Args:
        rollouts_by_run: the rollouts of each run.
        budget: bytes of JSON for the rollouts of all runs together.
    """
    data = viewer_data(rollouts_by_run, budget)
    body: list[Element] = []
    tables: dict[str, list[TextTable]] = {}
    for run_rollouts in rollouts_by_run:
        body += [paragraph(sentence, class_="caution") for sentence in run_rollouts.missing]
        tables[run_rollouts.run.path.name] = string_tables(run_rollouts.shown)
    num_rollouts = sum(len(run_rollouts.shown) for run_rollouts in rollouts_by_run)
    if data.anchors and len(data.anchors) < num_rollouts:
        words = (
            f"{len(data.anchors)} of {num_rollouts} rollouts are in this page, those with the largest cosines of each "
        )
        body.append(paragraph(f"{words}run, source and label.", class_="caution"))
    if data.anchors:
        body += _viewer(rollouts_by_run, data.json, data.largest_share)
    else:
        body.append(paragraph("No rollout can be shown.", class_="empty"))
    tables = {name: its_tables for name, its_tables in tables.items() if its_tables}
    if tables:
        body += [node("h3", "What pushes, over all rollouts"), paragraph(STRINGS, class_="soft-text")]
        for name, its_tables in tables.items():
            body += heading(name, needed=len(tables) > 1)
            body += folded(its_tables)
        body.append(paragraph(SHARES, class_="soft-text"))
    else:
        body.append(paragraph(ABSENT, class_="empty"))
    return Section(id="rollouts", title="Rollouts", lead=LEAD, body=body, tables=tables), data.anchors


def _viewer(rollouts_by_run: Sequence[RunRollouts], json: str, largest_share: float | None) -> list[Element]:
    """What a reader searches, sorts and filters with, the list that viewer.js fills, and the data."""
    shown = [rollout for run in rollouts_by_run for rollout in run.shown]
    runs = {"": "every run"} | {str(i): run.run.path.name for i, run in enumerate(rollouts_by_run)}
    sources = {"": "every source"} | {name: name for name in dict.fromkeys(one.sample.src_pool for one in shown)}
    known = [HACKED, CLEAN]
    if any(one.sample.hacked is None for one in shown):
        known.append(UNLABELLED)
    search = node(
        "input", type="search", placeholder="text of a completion or a prompt  ( / )", aria_label="Search the rollouts"
    )
    controls = [
        search,
        _buttons("label", "Label", {"": "all", **{name: name for name in known}}),
        *([_select("source", "Source", sources)] if len(sources) > 2 else []),
        *([_select("run", "Run", runs)] if len(runs) > 2 else []),
        _select("sort", "Order", ORDERS),
        _buttons("view", "View", {"list": "one by one", "problems": "hack beside clean"}),
        node("span", class_="soft-text", role="status"),
    ]
    legend = [] if largest_share is None else [_legend(largest_share)]
    more = node("button", "Show more", type="button", class_="more", hidden=True)
    content = [node("div", *controls, class_="filters"), *legend, node("div", class_="rollouts"), more]
    return [
        node("noscript", paragraph(NO_SCRIPT, class_="caution")),
        node("div", *content, class_="viewer"),
        node("script", json, type="application/json", id="rollout-data"),
    ]


def _buttons(key: str, label: str, choices: dict[str, str]) -> Element:
    """Buttons of which one is pressed; viewer.js reads `data-key` and `data-value`."""
    buttons = []
    for i, (value, text) in enumerate(choices.items()):
        pressed = "false" if i else "true"
        buttons.append(node("button", text, type="button", data_key=key, data_value=value, aria_pressed=pressed))
    return node("span", *buttons, role="group", aria_label=label, class_="choices")


def _select(name: str, label: str, choices: dict[str, str]) -> Element:
    options = [node("option", text, value=value) for value, text in choices.items()]
    return node("select", *options, name=name, aria_label=label)


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
