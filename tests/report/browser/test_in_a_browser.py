"""The page in headless Chromium: no complaint, nothing loaded, links, tokens, filters, themes, phone, paper."""

import math
from pathlib import Path
from typing import Any

import pytest

from probe.report.build import write_report
from probe.report.rollouts import load_rollouts
from probe.report.sections.rollout_details import SHARE_UNIT

SECTIONS = "verdict trajectories distributions modules cells length rollouts training power provenance".split()  # noqa: SIM905

AT_TOP = "Math.abs(document.querySelector(location.hash).getBoundingClientRect().top) < 200"
AT_END = "scrollY + innerHeight >= document.documentElement.scrollHeight - 2"
SHOWN = "Array.from(document.querySelectorAll('.rollout')).filter(r => r.offsetParent)"


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
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("kind", ["page", "training_page"])
def test_it_opens_without_a_complaint(
    browser: Any, request: pytest.FixtureRequest, tmp_path: Path, kind: str, width: int, dark: bool
) -> None:
    """Console and network are silent, every section has height, and nothing is wider than the screen."""
    path = request.getfixturevalue(kind)
    tab = browser.tab(width=width, dark=dark)
    tab.open(path)
    heights = tab.ask(f"{SECTIONS}.map(id => document.getElementById(id).getBoundingClientRect().height)")
    assert all(height > 60 for height in heights), dict(zip(SECTIONS, heights))
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
    tab.ask("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    tab.ask("new Promise(done => setTimeout(done, 50))")
    assert tab.ask("window.pwned === undefined")
    assert tab.ask("document.querySelectorAll('img, section script').length") == 0
    assert tab.problems == []


def test_the_contents_and_the_marks_of_the_scatter_lead_somewhere(browser: Any, page: Path) -> None:
    """Every link of the contents reaches its section; a mark opens its rollout and everything around it."""
    tab = browser.tab()
    tab.open(page)
    reached = f"{AT_TOP} || {AT_END}"
    for section in SECTIONS:
        tab.ask(f"document.querySelector('nav a[href=\"#{section}\"]').click()")
        tab.ask("new Promise(done => setTimeout(done, 30))")
        assert tab.ask("location.hash") == f"#{section}"
        assert tab.ask(reached), section
    tab.ask("document.querySelector('#length a').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    tab.ask("new Promise(done => setTimeout(done, 50))")
    assert tab.ask(
        "document.querySelector(location.hash).open && document.querySelector(location.hash).matches('.rollout')"
    )


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
    scale = int(tab.ask("document.querySelector('[data-scale]').dataset.scale"))
    coloured: list[str] = []
    for one in shown[:8]:
        pre = f"document.querySelector('#{one.anchor} .tokens')"
        before = tab.ask(f"{pre}.textContent")
        tab.ask(f"document.getElementById('{one.anchor}').open = true")
        tab.ask("new Promise(done => setTimeout(done, 30))")
        assert tab.ask(f"{pre}.textContent") == before
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


def test_filters_show_what_they_say(browser: Any, page: Path) -> None:
    tab = browser.tab()
    tab.open(page)
    visible = f"{SHOWN}.map(r => r.dataset.label + '/' + r.dataset.source)"
    everything = tab.ask(visible)
    for key, keep in (("hacked", "hacked/"), ("clean", "clean/"), ("source:base", "/base")):
        tab.ask(f"document.querySelector('button[data-filter=\"{key}\"]').click()")
        assert tab.ask(visible) == [row for row in everything if keep in row]
        count = f"{sum(keep in row for row in everything)} rollouts"
        assert tab.ask("document.querySelector('[role=status]').textContent") == count
    tab.ask("document.querySelector('button[data-filter=\"\"]').click()")
    assert tab.ask(visible) == everything


def test_paper_is_light_and_has_no_controls(browser: Any, page: Path) -> None:
    """Printed from a dark screen: dark ink, no contents, no buttons, folded rollouts left out."""
    tab = browser.tab(dark=True)
    tab.open(page)
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.ask("getComputedStyle(document.querySelector('svg.fig text')).fill") == "rgb(31, 35, 40)"
    gone = tab.ask("['nav', '.filters', '.rollout'].map(s => document.querySelector(s).offsetParent === null)")
    assert gone == [True, True, True]


def test_figures_open_by_themselves(browser: Any, page: Path) -> None:
    """The SVG files draw something of their own, in both themes."""
    for path in sorted((page.parent / "browsed").glob("*.svg"))[:4]:
        tab = browser.tab(width=800, dark=True)
        tab.open(path)
        assert tab.ask("document.documentElement.getBBox().width") > 200
        assert tab.ask("getComputedStyle(document.querySelector('text')).fill") == "rgb(231, 233, 235)"
        assert tab.problems == []
