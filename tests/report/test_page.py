"""The page as a document: every section, unique ids, links that resolve, nothing loaded, texts escaped, under 2 MB."""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from probe.report import analyses, viewer
from probe.report.analyses import Report
from probe.report.build import write_report
from probe.report.evidence import load_rollouts
from probe.report.page import typeset
from probe.report.sections import rollouts
from probe.report.viewer import SHARE_UNIT
from replay_pools.base.terminal import visible
from replay_pools.pool import open_pool

Written = tuple[Path, list[Path]]  # page, figures
ONE_RUN = ["verdict", "rollouts", "estimates", "provenance"]
SECTIONS = {  # of the kinds that are not one replay
    "several": ["verdict", "runs", "rollouts", "estimates", "provenance"],
    "training": ["verdict", "training", "runs", "rollouts", "estimates", "provenance"],
}
VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}
KINDS = ["plain", "nulls", "several", "training"]


class Document(HTMLParser):
    """Elements with their attributes and texts; fails on a tag that is not closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[tuple[str, list[str]]] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {[tag for tag, _ in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append((tag, []))

    def handle_endtag(self, tag: str) -> None:
        opened, parts = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        self.texts.setdefault(tag, []).append("".join(parts))

    def handle_data(self, data: str) -> None:
        for _, parts in self._open:
            parts.append(data)

    @property
    def data(self) -> dict[str, Any]:
        """What page.js reads."""
        return json.loads(next(text for text in self.texts["script"] if text.startswith("{")))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.data["rows"]

    def attributes(self, name: str) -> list[str]:
        return [found for _, own in self.elements if (found := own.get(name)) is not None]


@pytest.fixture(scope="module")
def written(maker, report_of) -> Callable[[str], tuple[Written, Report]]:
    """written(kind) -> the files of one kind of report, made once."""
    cache: dict[str, tuple[Written, Report]] = {}
    trained = [
        {"name": f"{arm}-{seed}", "arms": (arm,), "seed": seed, "trains": True, "tokens": False, "rates": [0.1, 0.5]}
        for arm, seed in (("vanilla", 1), ("vanilla", 2), ("projected", 1))
    ]
    recipes: dict[str, list[dict[str, Any]]] = {
        "plain": [{}],
        "nulls": [{"name": "nulls", "null": True}],
        "several": [{"name": "other", "arms": ("vanilla",), "tokens": False}, {"name": "moved", "num_steps": 1}],
        "training": trained,
    }

    def make(kind: str) -> tuple[Written, Report]:
        if kind not in cache:
            directories = [maker(**own) for own in recipes[kind]]
            if kind == "several":
                (maker.out / "pools-moved" / "base" / "manifest.json").unlink()
            report = report_of(*directories, name=kind)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(analyses, "MOST_DRAWN", 2 if kind == "several" else 1)
                cache[kind] = write_report(report, maker.out), report
        return cache[kind]

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_one_sound_document_that_loads_nothing(written, kind: str) -> None:
    """Sections, unique ids, links that resolve; no address, no handler, one script and one style."""
    files, _ = written(kind)
    text = files[0].read_text(encoding="utf-8")
    document = Document(text)
    assert text.startswith("<!doctype html>")
    sections = SECTIONS.get(kind, ONE_RUN)
    assert [own["id"] for tag, own in document.elements if tag == "section"] == sections
    ids = Counter([*document.attributes("id"), *(row["anchor"] for row in document.rows)])
    assert [name for name, count in ids.items() if count > 1] == []
    links = document.attributes("href")
    assert {link for link in links if not link.startswith("#")} == set(), "a link leaves the page"
    assert {link[1:] for link in links} <= ids.keys(), "a link leads nowhere"
    assert set(sections) <= {link[1:] for link in links}, "a section is not in the contents"
    assert files[0].stat().st_size < 3_000_000
    tags = Counter(tag for tag, _ in document.elements)
    scripts = [own for tag, own in document.elements if tag == "script"]
    assert [own.get("type") for own in scripts] == ["application/json", None]
    assert "<" not in document.texts["script"][0], "no text can end the element that holds the data"
    assert tags["style"] == 1
    assert not tags.keys() & {"img", "iframe", "object", "embed", "link", "base", "form", "video", "audio"}
    names = {name for _, own in document.elements for name in own}
    assert not {name for name in names if name.startswith("on") or name in ("src", "srcset", "style", "xlink:href")}
    assert "url(" not in document.texts["style"][0]
    assert "@import" not in document.texts["style"][0]
    policy = next(own["content"] for tag, own in document.elements if own.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


@pytest.mark.parametrize("kind", ["plain", "training"])
def test_texts_of_models_come_back_as_they_were(written, kind: str) -> None:
    """Every shown completion is in the page, character by character (invisible characters as escapes)."""
    files, report = written(kind)
    document = Document(files[0].read_text(encoding="utf-8"))
    shown = {"".join(turn["text"] for turn in row["turns"]) for row in document.rows}
    pools = report.runs[0].path / "rollouts" if kind == "training" else Path(report.runs[0].config["pools"][0]["path"])
    for group in open_pool(pools).steps:
        for rollout in group:
            assert visible(rollout.completion) in shown, f"not found: {rollout.completion!r}"


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_files_too(written, kind: str) -> None:
    """Well-formed SVG with finite numbers, as many as the page draws."""
    files, _ = written(kind)
    document = Document(files[0].read_text(encoding="utf-8"))
    drawn = sum(own.get("class") == "fig" for _, own in document.elements)
    assert drawn == len(files[1]) == len(set(files[1]))
    for path in files[1]:
        root = ET.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        numbers = " ".join(node.attrib.get(name, "") for node in root.iter() for name in ("d", "x", "y"))
        assert not re.search("nan|inf", numbers, re.IGNORECASE)


def test_a_report_is_the_same_bytes_again(written, maker) -> None:
    files, report = written("plain")
    before = {path: path.read_bytes() for path in (files[0], *files[1])}
    again = write_report(report, maker.out)
    assert {path: path.read_bytes() for path in (again[0], *again[1])} == before


def test_of_many_rollouts_those_to_read_first_are_shown(written, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of every source and label, and it is said."""
    _, report = written("plain")
    monkeypatch.setattr(viewer, "MOST_ROLLOUTS", 9)
    section = rollouts([load_rollouts(report.analyses[0])])
    labels = Counter((row["source"], row["label"]) for row in Document(section.html).rows)
    assert labels == {("teacher", "hacked"): 5, ("base", "clean"): 4}
    assert "9 of 24 rollouts" in section.html


def test_the_page_opens_with_the_words_of_the_screen(written) -> None:
    files, report = written("plain")
    document = Document(files[0].read_text(encoding="utf-8"))
    body = document.texts["main"][0]
    analysis = report.analyses[0]
    said = [finding.text for finding in analysis.verdict.findings]
    if analysis.verdict.word == "BROKEN":
        said = [analysis.verdict.sentence]
    said = [analysis.verdict.word, *said, *analysis.verdict.caveats, analysis.verdict.next.text]
    letters = "".join(body.split())
    places = [letters.index("".join(typeset(words).split())) for words in said]
    assert places == sorted(places)
    assert all(part.question in body for part in analysis.validity)


def test_shares_in_the_page_are_those_of_the_records(written) -> None:
    """One length and one share a token; together they spell the completion and add up to its cosine."""
    files, report = written("plain")
    rows = Document(files[0].read_text(encoding="utf-8")).rows
    assert len(rows) == 24
    cosines = {(sample.step, sample.sample_id): sample.cos_S_nll for sample in report.analyses[0].samples}
    for row in rows:
        (turn,) = row["turns"]
        text, lengths, units = turn["text"], turn["chars"], turn["shares"]
        assert len(lengths) == len(units)
        assert sum(lengths) == len(text)
        rounding = SHARE_UNIT * len(units) / 2
        assert SHARE_UNIT * sum(units) == pytest.approx(cosines[row["step"], row["sample"]], abs=rounding)
