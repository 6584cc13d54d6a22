"""The page in headless Chromium: no complaint, nothing loaded, links, tokens, search, tables, themes, phone, paper."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.report.build import write_report
from probe.report.evidence import ShownRollout, load_rollouts
from probe.report.viewer import SHARE_UNIT
from replay_pools.base.terminal import visible

pytestmark = pytest.mark.slow
SECTIONS = "[...document.querySelectorAll('section')].map(s => [s.id, s.getBoundingClientRect().height])"
SHOWN = "Array.from(document.querySelectorAll('.rollout'))"
STATUS = "document.querySelector('[role=status]').textContent"
CLIPPED = """[...document.querySelectorAll('.scroll')].filter(box => box.checkVisibility())
  .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.firstElementChild.ariaLabel)"""
# What is cut at the right edge of the window, and does not scroll inside a box of its own.
CUT = """[...document.querySelectorAll('main *, header *')]
  .filter(one => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll'))
  .map(one => one.outerHTML.slice(0, 120))"""
OPEN_ALL = "document.querySelectorAll('details').forEach(box => { box.open = true; })"
SETTLED = "new Promise(done => setTimeout(done, 150))"
Opened = Callable[..., Any]


@pytest.fixture(scope="session")
def pages(browser: Any, maker: Any, report_of: Any) -> dict[str, Path]:
    """A replay with tokens and hostile texts, and trainings."""
    trained = [
        maker(name=f"b-{arm}-{seed}", arms=(arm,), seed=seed, trains=True, tokens=False, rates=[0.1, 0.4, 0.2])
        for arm in ("vanilla", "projected")
        for seed in (1, 2)
    ]
    return {
        "replay": write_report(report_of(maker(name="browsed"), name="browsed"), maker.out)[0],
        "training": write_report(report_of(*trained, name="trained"), maker.out)[0],
    }


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Opened:
    """opened(kind="replay", fragment="", width=..., dark=...) -> a tab that shows the page."""

    def make(kind: str = "replay", fragment: str = "", **settings: Any) -> Any:
        tab = browser.tab(**settings)
        tab.open(pages[kind], fragment)
        return tab

    return make


@pytest.fixture(scope="session")
def shown(maker: Any, report_of: Any) -> list[ShownRollout]:
    """The rollouts of the replay."""
    return load_rollouts(report_of(maker(name="browsed")).analyses[0])[1]


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (420, True)])
@pytest.mark.parametrize("kind", ["replay", "training"])
def test_it_opens_without_a_complaint(opened: Opened, pages: Any, kind: str, width: int, dark: bool) -> None:
    """Console and network are silent; sections have height; no table is clipped, none widens a phone."""
    tab = opened(kind, width=width, dark=dark)
    assert all(height > 60 for _, height in tab.ask(SECTIONS)), tab.ask(SECTIONS)
    assert tab.requests == [pages[kind].as_uri()]
    assert (tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)") is not dark
    ink = tab.ask("getComputedStyle(document.body).color")
    assert ink in tab.ask("[...document.querySelectorAll('svg.fig text')].map(t => getComputedStyle(t).fill)")
    tab.ask(OPEN_ALL)
    tab.ask(SETTLED)
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert tab.ask(CUT) == []
    assert width < 1200 or tab.ask(CLIPPED) == []
    assert tab.problems == []


@pytest.mark.parametrize("kind", ["replay", "training"])
def test_every_command_has_a_button_that_copies_it(opened: Opened, kind: str) -> None:
    """The whole line, without the word on the button."""
    tab = opened(kind)
    tab.ask(OPEN_ALL)
    tab.ask("window.copied = []; navigator.clipboard.writeText = async (text) => { copied.push(text); }")
    tab.ask("document.querySelectorAll('.copied button').forEach(button => button.click())")
    commands = tab.ask("[...document.querySelectorAll('pre.command')].map(pre => pre.textContent)")
    assert tab.ask("copied") == commands
    assert any(line.startswith("probe ") for line in commands)
    assert not any("--full" in line for line in tab.ask("[document.body.textContent]"))
    assert tab.ask(
        "[...document.querySelectorAll('pre.command')].every(pre => pre.nextElementSibling.tagName == 'BUTTON')"
    )
    assert tab.problems == []


def test_model_output_runs_nothing(opened: Opened) -> None:
    tab = opened()
    tab.ask(OPEN_ALL)
    tab.ask(SETTLED)
    assert tab.ask("window.pwned === undefined")
    assert tab.ask("document.querySelectorAll('img, section script:not(#rollout-data)').length") == 0
    assert tab.problems == []


def test_tokens_are_coloured_by_their_shares_and_spell_the_text(opened: Opened, shown: list[ShownRollout]) -> None:
    """One span a token, shaded by its share, its title with the share and the next token; the text unchanged."""
    tab = opened()
    tab.ask("document.querySelector('.more').click()")
    scale = int(tab.ask("JSON.parse(document.getElementById('rollout-data').textContent).runs[0].scale"))

    def shade(share: float) -> str:
        units = round(share / SHARE_UNIT)
        level = min(5, math.floor(5 * abs(units) / scale + 0.5))
        return f"{'p' if units > 0 else 'n'}{level}" if level else ""

    coloured: list[str] = []
    for one in shown[:8]:
        pre = f"document.querySelector('#{one.anchor} > div > :last-child .tokens')"
        tab.ask(f"document.getElementById('{one.anchor}').open = true")
        tab.ask("new Promise(done => setTimeout(done, 30))")
        assert tab.ask(f"{pre}.textContent") == visible(one.rollout.completion)
        assert one.tokens is not None
        assert one.tokens.completion is not None
        classes = tab.ask(f"Array.from({pre}.querySelectorAll('span')).map(s => s.className)")
        assert classes == [shade(share) for share in one.tokens.completion]
        coloured += [name for name in classes if name]
        assert "of the likelihood gradient's cosine: read here, with" in tab.ask(f"{pre}.querySelector('span').title")
    assert {name[0] for name in coloured} == {"p", "n"}
    assert tab.problems == []


def type_in(tab: Any, words: str) -> None:
    """Type into the search box, and wait until the list has followed."""
    box = "document.querySelector('input[type=search]')"
    tab.ask(f"{box}.value = {words!r}; {box}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    tab.ask(SETTLED)


def choose(tab: Any, name: str, value: str) -> None:
    box = f"document.querySelector('select[name={name}]')"
    tab.ask(f"{box}.value = {value!r}; {box}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def test_rows_filters_and_orders_show_what_they_say(opened: Opened, shown: list[ShownRollout]) -> None:
    """Rows have labels, answer, question and cosine; filters hold together; every order is that of the records."""
    by_anchor = {one.anchor: one for one in shown}
    tab = opened(width=1200)
    rows = tab.ask(f"{SHOWN}.map(r => [r.id, r.innerText])")
    assert len(rows) == 20
    for anchor, text in rows:
        one = by_anchor[anchor]
        assert ("hacked" if one.sample.hacked else "clean") in text
        assert visible(one.rollout.completion).split("\n")[0] in text
        assert one.rollout.messages[-1]["content"].split("\n")[0] in text
        assert f"{abs(one.sample.cos_S_contrib or 0):.3f}" in text
    for label, source in (("hacked", ""), ("clean", ""), ("clean", "base"), ("hacked", "base"), ("", "")):
        choose(tab, "label", label)
        choose(tab, "source", source)
        wanted = [s for s in (one.sample for one in shown) if label in ("", "hacked" if s.hacked else "clean")]
        assert tab.ask(STATUS) == f"{sum(source in ('', s.src_pool) for s in wanted)} of 24 rollouts"
    keys = {
        "hackward": lambda s: -(s.cos_S_contrib or 0),
        "cleanward": lambda s: s.cos_S_contrib or 0,
        "step": lambda s: (s.step, s.sample_id),
        "tokens": lambda s: -s.comp_len,
    }
    for name, key in keys.items():
        choose(tab, "sort", name)
        found = [key(by_anchor[anchor].sample) for anchor in tab.ask(f"{SHOWN}.map(r => r.id)")]
        assert found == sorted(key(one.sample) for one in shown)[:20]


def test_search_finds_every_occurrence_and_marks_it(opened: Opened, shown: list[ShownRollout]) -> None:
    """In completions, whatever the case; what is not there is not found; a string of the evidence is searched."""
    tab = opened(width=1200)
    for words in ("DEF run_tests", "<script>", "window.pwned", "not anywhere"):
        type_in(tab, words)
        count = sum(words.lower() in visible(one.rollout.completion).lower() for one in shown)
        assert tab.ask(STATUS) == f"{count} of 24 rollouts", words
        marks = tab.ask(f"{SHOWN}.map(r => r.querySelector('mark')?.textContent.toLowerCase())")
        assert marks == [words.lower()] * min(count, 20)
    assert tab.ask("document.querySelector('.more').hidden")
    tab.ask("document.querySelector('[data-search=\"def run_tests():\"]').click()")
    assert tab.ask(STATUS) == "12 of 24 rollouts"
    assert tab.ask("document.activeElement.value") == "def run_tests():"
    assert tab.problems == []
