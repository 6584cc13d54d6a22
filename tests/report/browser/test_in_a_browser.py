"""The page in headless Chromium: no complaint, nothing loaded, links, tokens, search, tables, themes, phone, paper."""

import math
from pathlib import Path
from typing import Any

import pytest

from probe.report.build import write_report
from probe.report.rollouts import load_rollouts
from probe.report.viewer import SHARE_UNIT
from replay_pools.visible import visible

SECTIONS = "[...document.querySelectorAll('section')].map(s => [s.id, s.getBoundingClientRect().height])"
AT_TOP = "Math.abs(document.querySelector(location.hash).getBoundingClientRect().top) < 200"
AT_END = "scrollY + innerHeight >= document.documentElement.scrollHeight - 2"
SHOWN = "Array.from(document.querySelectorAll('.rollout'))"
STATUS = "document.querySelector('[role=status]').textContent"
TABLES = """[...document.querySelectorAll('.scroll')].filter(box => box.checkVisibility())
  .map(box => [box.querySelector('caption').textContent, box.scrollWidth - box.clientWidth])"""
OPEN_ALL = "document.querySelectorAll('details').forEach(box => { box.open = true; })"
SETTLED = "new Promise(done => setTimeout(done, 150))"


@pytest.fixture(scope="session")
def page(browser: Any, maker: Any, report_of: Any) -> Path:
    """A report with tokens and hostile texts."""
    return write_report(report_of(maker(name="browsed"), name="browsed"), maker.out).html


@pytest.fixture(scope="session")
def training_page(browser: Any, maker: Any, report_of: Any) -> Path:
    directories = [
        maker(name=f"b-{arm}-{seed}", arms=(arm,), seed=seed, trains=True, tokens=False, rates=[0.1, 0.4, 0.2])
        for arm in ("vanilla", "projected")
        for seed in (1, 2)
    ]
    return write_report(report_of(*directories, name="trained"), maker.out).html


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420, 375])
@pytest.mark.parametrize("kind", ["page", "training_page"])
def test_it_opens_without_a_complaint(
    browser: Any, request: pytest.FixtureRequest, tmp_path: Path, kind: str, width: int, dark: bool
) -> None:
    """Console and network are silent, every section has height, and nothing is wider than the screen."""
    path = request.getfixturevalue(kind)
    tab = browser.tab(width=width, dark=dark)
    tab.open(path)
    assert all(height > 60 for _, height in tab.ask(SECTIONS)), tab.ask(SECTIONS)
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert tab.problems == []
    assert tab.requests == [path.as_uri()]
    ground = tab.ask("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_model_output_runs_nothing(browser: Any, page: Path) -> None:
    tab = browser.tab()
    tab.open(page)
    tab.ask(OPEN_ALL)
    tab.ask("document.querySelector('[data-value=problems]').click()")
    tab.ask(OPEN_ALL)
    tab.ask(SETTLED)
    assert tab.ask("window.pwned === undefined")
    assert tab.ask("document.querySelectorAll('img, section script:not(#rollout-data)').length") == 0
    assert tab.problems == []


def test_the_contents_lead_somewhere(browser: Any, page: Path) -> None:
    """Every link of the contents reaches its section."""
    tab = browser.tab()
    tab.open(page)
    reached = f"{AT_TOP} || {AT_END}"
    for section, _ in tab.ask(SECTIONS):
        tab.ask(f"document.querySelector('nav a[href=\"#{section}\"]').click()")
        tab.ask("new Promise(done => setTimeout(done, 30))")
        assert tab.ask("location.hash") == f"#{section}"
        assert tab.ask(reached), section


def test_a_link_into_a_folded_place_opens_it(browser: Any, page: Path) -> None:
    tab = browser.tab()
    tab.open(page, "#r-browsed-3-1")
    assert tab.ask("document.getElementById('r-browsed-3-1').open")


def shade(share: float, scale: int) -> str:
    """The class of a token: its side, and one of five levels up to the scale."""
    units = round(share / SHARE_UNIT)
    level = min(5, math.floor(5 * abs(units) / scale + 0.5))
    return f"{'p' if units > 0 else 'n'}{level}" if level else ""


def test_tokens_are_coloured_by_their_shares_and_spell_the_text(
    browser: Any, page: Path, maker: Any, report_of: Any
) -> None:
    """One span a token, shaded by its share, its title with the share and the next token; the text unchanged."""
    shown = load_rollouts(report_of(maker(name="browsed")).views[0]).shown
    tab = browser.tab()
    tab.open(page)
    tab.ask("document.querySelector('.more').click()")
    scale = int(tab.ask("JSON.parse(document.getElementById('rollout-data').textContent).runs[0].scale"))
    coloured: list[str] = []
    for one in shown[:8]:
        pre = f"document.querySelector('#{one.anchor} > div > :last-child .tokens')"
        tab.ask(f"document.getElementById('{one.anchor}').open = true")
        tab.ask("new Promise(done => setTimeout(done, 30))")
        assert tab.ask(f"{pre}.textContent") == visible(one.rollout.completion)
        assert one.tokens is not None
        assert one.tokens.completion is not None
        assert tab.ask(f"{pre}.querySelectorAll('span').length") == one.rollout.comp_len
        classes = tab.ask(f"Array.from({pre}.querySelectorAll('span')).map(s => s.className)")
        assert classes == [shade(share, scale) for share in one.tokens.completion]
        coloured += [name for name in classes if name]
        title = tab.ask(f"{pre}.querySelector('span').title")
        assert "of cos_S_nll: read here, with" in title
    assert {name[0] for name in coloured} == {"p", "n"}
    assert tab.problems == []


def type_in(tab: Any, words: str) -> None:
    """Type into the search box, and wait until the list has followed."""
    box = "document.querySelector('input[type=search]')"
    tab.ask(f"{box}.value = {words!r}; {box}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    tab.ask(SETTLED)


def press(tab: Any, key: str, value: str) -> None:
    tab.ask(f"document.querySelector('button[data-key={key}][data-value=\"{value}\"]').click()")


def choose(tab: Any, name: str, value: str) -> None:
    box = f"document.querySelector('select[name={name}]')"
    tab.ask(f"{box}.value = {value!r}; {box}.dispatchEvent(new Event('change', {{bubbles: true}}))")


def test_rows_say_what_was_asked_and_answered(browser: Any, page: Path, maker: Any, report_of: Any) -> None:
    """Closed, a row shows its labels, the first lines of the answer, the question and its cosine."""
    tab = browser.tab(width=1200)
    tab.open(page)
    shown = {one.anchor: one for one in load_rollouts(report_of(maker(name="browsed")).views[0]).shown}
    rows = tab.ask(f"{SHOWN}.map(r => [r.id, r.open, r.innerText])")
    assert len(rows) == 20
    for anchor, is_open, text in rows:
        one = shown[anchor]
        assert not is_open
        assert ("hacked" if one.sample.hacked else "clean") in text
        assert visible(one.rollout.completion).split("\n")[0] in text
        assert one.rollout.messages[-1]["content"].split("\n")[0] in text
        assert f"{abs(one.sample.cos_S_contrib or 0):.3f}" in text


def test_filters_and_orders_show_what_they_say(browser: Any, page: Path, maker: Any, report_of: Any) -> None:
    """Label and source filter together; every order is that of the records."""
    samples = [one.sample for one in load_rollouts(report_of(maker(name="browsed")).views[0]).shown]
    tab = browser.tab()
    tab.open(page)
    tab.ask("document.querySelector('.more').click()")
    everything = tab.ask(f"{SHOWN}.map(r => r.dataset.label + '/' + r.dataset.source)")
    assert len(everything) == len(samples) == 24
    for label, source in (("hacked", ""), ("clean", ""), ("clean", "base"), ("hacked", "base"), ("", "")):
        press(tab, "label", label)
        choose(tab, "source", source)
        wanted = [s for s in samples if label in ("", "hacked" if s.hacked else "clean") and source in ("", s.src_pool)]
        assert tab.ask(STATUS) == f"{len(wanted)} of 24 rollouts"
    keys = {
        "hackward": lambda s: -(s.cos_S_contrib or 0),
        "cleanward": lambda s: s.cos_S_contrib or 0,
        "step": lambda s: (s.step, s.sample_id),
        "tokens": lambda s: -s.comp_len,
    }
    for name, key in keys.items():
        choose(tab, "sort", name)
        order = [f"r-browsed-{s.step}-{s.sample_id}" for s in sorted(samples, key=key)]
        found = tab.ask(f"{SHOWN}.map(r => r.id)")
        assert [key(samples_by(samples)[one]) for one in found] == [key(samples_by(samples)[o]) for o in order[:20]]


def samples_by(samples: list) -> dict:
    return {f"r-browsed-{sample.step}-{sample.sample_id}": sample for sample in samples}


def test_search_finds_every_occurrence_and_marks_it(browser: Any, page: Path, maker: Any, report_of: Any) -> None:
    """In completions and prompts, whatever the case; what is not there is not found."""
    shown = load_rollouts(report_of(maker(name="browsed")).views[0]).shown
    tab = browser.tab()
    tab.open(page)
    for words in ("DEF run_tests", "<script>", "window.pwned", "not anywhere"):
        type_in(tab, words)
        count = sum(words.lower() in visible(one.rollout.completion).lower() for one in shown)
        assert tab.ask(STATUS) == f"{count} of 24 rollouts", words
        marks = tab.ask(f"{SHOWN}.map(r => r.querySelector('mark')?.textContent.toLowerCase())")
        assert marks == [words.lower()] * min(count, 20)
    assert tab.ask("document.querySelector('.more').hidden")
    assert tab.problems == []


def test_a_string_of_the_evidence_leads_to_its_rollouts(browser: Any, page: Path) -> None:
    """From the first screen to the texts by one click; `/` goes to the search from anywhere."""
    tab = browser.tab(width=1200)
    tab.open(page)
    assert tab.ask("document.querySelector('.evidence').getBoundingClientRect().bottom < innerHeight")
    press_evidence = "document.querySelector('[data-search=\"def run_tests():\"]').click()"
    tab.ask(press_evidence)
    assert tab.ask(STATUS) == "12 of 24 rollouts"
    assert tab.ask("document.activeElement.value") == "def run_tests():"
    tab.ask("document.activeElement.blur(); scrollTo(0, 0)")
    tab.ask("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
    assert tab.ask("document.activeElement.type") == "search"


def test_a_hack_beside_a_clean_answer_to_the_same_problem(browser: Any, page: Path) -> None:
    """A row a problem; both columns step through their answers; from an opened rollout it is one click."""
    tab = browser.tab(width=1200)
    tab.open(page)
    press(tab, "view", "problems")
    assert tab.ask(STATUS) == "6 problems with a hack and a clean answer"
    tab.ask("document.querySelector('.rollout').open = true")
    tab.ask(SETTLED)
    sides = "[...document.querySelectorAll('.rollout[open] .side')]"
    assert tab.ask(f"{sides}.map(s => s.querySelector('b').textContent)") == ["hack 1 of 2", "clean 1 of 2"]
    first = tab.ask(f"{sides}[0].querySelector('pre').textContent")
    tab.ask(f"{sides}[0].querySelectorAll('button')[1].click()")
    assert tab.ask(f"{sides}[0].querySelector('b').textContent") == "hack 2 of 2"
    assert tab.ask(f"{sides}[0].querySelector('pre').textContent") != first
    left, right = tab.ask(f"{sides}.map(s => s.getBoundingClientRect().left)")
    assert right - left > 300, "beside one another"
    press(tab, "view", "list")
    tab.ask("document.querySelector('.rollout').open = true")
    tab.ask(SETTLED)
    text = tab.ask("document.querySelector('.rollout[open] .text').textContent")
    tab.ask("document.querySelector('.rollout[open] button').click()")
    tab.ask(SETTLED)
    assert text in tab.ask("[...document.querySelectorAll('.rollout.problem[open] .text')].map(p => p.textContent)")
    assert tab.problems == []


def test_a_link_shows_a_rollout_that_is_filtered_out(browser: Any, page: Path) -> None:
    tab = browser.tab()
    tab.open(page)
    type_in(tab, "not anywhere")
    tab.ask("location.hash = '#r-browsed-5-3'")
    tab.ask(SETTLED)
    assert tab.ask("document.getElementById('r-browsed-5-3').open")


@pytest.mark.parametrize("kind", ["page", "training_page"])
def test_no_table_is_clipped(browser: Any, request: pytest.FixtureRequest, kind: str) -> None:
    """At 1200 px every table, of those that fold too, shows all of its columns; at 420 px it scrolls in its own box."""
    path = request.getfixturevalue(kind)
    for width in (1200, 420):
        tab = browser.tab(width=width)
        tab.open(path)
        tab.ask(OPEN_ALL)
        tab.ask(SETTLED)
        tables = tab.ask(TABLES)
        assert len(tables) >= 10
        if width == 1200:
            assert [row for row in tables if row[1] > 1] == []
        assert tab.ask("document.documentElement.scrollWidth") <= width


def test_everything_is_reached_by_keyboard_and_has_a_name(browser: Any, page: Path) -> None:
    """Controls have a name to say, and rows are summaries, which a keyboard opens."""
    tab = browser.tab()
    tab.open(page)
    controls = "[...document.querySelectorAll('button, select, input')]"
    assert tab.ask(f"{controls}.every(c => c.tabIndex === 0)")
    assert tab.ask(f"{controls}.every(c => c.getAttribute('aria-label') || c.textContent.trim())")
    assert tab.ask("[...document.querySelectorAll('details')].every(d => d.firstElementChild.tagName === 'SUMMARY')")


def test_paper_is_light_and_has_no_controls(browser: Any, page: Path) -> None:
    """Printed from a dark screen: dark ink, no contents, no buttons, folded rollouts left out."""
    tab = browser.tab(dark=True)
    tab.open(page)
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.ask("getComputedStyle(document.querySelector('svg.fig text')).fill") == "rgb(31, 35, 40)"
    gone = tab.ask("['nav', '.filters', '.rollout'].map(s => document.querySelector(s).offsetParent === null)")
    assert gone == [True, True, True]


def test_figures_take_the_colours_of_the_page(browser: Any, page: Path) -> None:
    """In both themes: the ink of a figure is that of the text."""
    for dark in (False, True):
        tab = browser.tab(dark=dark)
        tab.open(page)
        ink = tab.ask("getComputedStyle(document.body).color")
        assert ink in tab.ask("[...document.querySelectorAll('svg.fig text')].map(t => getComputedStyle(t).fill)")


def test_thousands_of_rollouts_stay_quick(browser: Any, maker: Any, report_of: Any) -> None:
    """All are in one page below 2 MB; a search touches every text, and the page answers within a second."""
    directory = maker(name="thousands", num_steps=500, arms=("vanilla",), tokens=False)
    path = write_report(report_of(directory, name="thousands"), maker.out).html
    assert path.stat().st_size < 2_000_000
    tab = browser.tab(width=1200)
    tab.open(path)
    assert tab.ask(STATUS) == "2000 of 2000 rollouts"
    assert tab.ask("document.querySelectorAll('.rollout').length") == 20
    ms = tab.ask(
        """(async () => {
          const box = document.querySelector('input[type=search]');
          box.value = 'run_tests';
          const start = performance.now();
          box.dispatchEvent(new Event('input', {bubbles: true}));
          while (!document.querySelector('[role=status]').textContent.startsWith('1000 '))
            await new Promise(requestAnimationFrame);
          return performance.now() - start;
        })()"""
    )
    assert ms < 1000
