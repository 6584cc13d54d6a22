"""Figures against the numbers that they draw: series, labels, units; and their markup in the page."""

import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import axes_of, series

from probe.analysis.analyze import Analysis
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.intervals import Interval
from probe.report.drawing import COLORS, HACK, INK, drawn
from probe.report.run_figures import (
    FIGURES,
    MARKS,
    Forest,
    Row,
    distribution,
    family,
    forest,
    layer_and_kind,
    module_map,
)
from probe.report.trainings import figures_of_training, trained_arms


@pytest.fixture(scope="module")
def analysis(maker, report_of) -> Analysis:
    return report_of(maker(name="marks")).analyses[0]


def test_every_axis_has_a_label_and_every_series_is_told(maker, report_of, analysis: Analysis) -> None:
    """Each figure of a run and of trainings: a title, labels with what is counted, a legend of several series."""
    trained = [
        maker(name=f"f-{s}", arms=("vanilla",), seed=s, trains=True, tokens=False, rates=[0.1, 0.5]) for s in (1, 2)
    ]
    treatments = trained_arms(
        report_of(*trained, maker(name="f-p", arms=("projected",), trains=True, rates=[0.2, 0.3]))
    )
    figures = [drawn(name, draw, *data) for rows in FIGURES.values() for name, draw, *data in rows(analysis)]
    found = [figure for figure in (*figures, *figures_of_training(treatments)) if figure is not None]
    assert len(found) >= 9
    for figure in found:
        (axes,) = figure.canvas.axes
        assert figure.title, figure.name
        assert axes.get_xlabel(), figure.name
        assert axes.get_ylabel() or not len(axes.get_yticks()), figure.name
        labels = set(axes.get_legend_handles_labels()[1])
        legend = {text.get_text() for each in figure.canvas.legends for text in each.get_texts()}
        assert labels == legend, figure.name


def test_a_forest_has_its_values_in_order_with_their_intervals() -> None:
    """No mark for a row without a value, an arrow where an end or a value is cut; nothing drawn without any value."""
    values = [0.3, -0.2, None, 0.05, 9.0]
    rows = []
    for i, v in enumerate(values):
        row = Estimate(name="x", value=v, interval=Interval(low=v - 0.1, high=v + 0.1) if v else None)
        rows.append(Row(f"row {i}", "", row))
    axes = axes_of(lambda axes: forest(axes, rows, Forest("", "", limits=(-0.25, 1.0))))
    marks = [
        (line.get_xdata()[0], line.get_ydata()[0], line.get_marker())
        for line in axes.lines
        if len(line.get_xdata()) == 1
    ]
    assert marks == [(0.3, 0, "o"), (-0.25, 1, "<"), (-0.2, 1, "o"), (0.05, 2, "o"), (1.0, 3, ">")]
    ends = [tuple(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 2]
    assert ends == [pytest.approx(pair) for pair in ((0.2, 0.4), (-0.25, -0.1), (-0.05, 0.15), (1.0, 1.0))]
    assert [text.get_text() for text in axes.texts][::2] == ["row 0", "row 1", "row 3", "row 4"]
    assert drawn("f", forest, rows[2:3], Forest("", "")) is None


def test_a_family_is_drawn_by_its_estimates(analysis: Analysis) -> None:
    """Every estimate with a value has a mark, and its name in words where there are words."""
    axes = axes_of(family, [analysis], "auroc")
    known = [row for row in analysis.of("auroc") if row.value is not None]
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert marks == pytest.approx([row.value for row in known])
    labels = [text.get_text() for text in axes.texts][::2]
    assert labels[0] == "v_hack"
    assert "length" in labels
    assert not {"comp_len", "nll"} & set(labels)


@pytest.mark.parametrize(("z", "title"), [(2.0, "No module stands out"), (6.0, "1 module of 24 stand out")])
def test_the_module_map_has_a_place_for_every_module(z: float, title: str) -> None:
    names = [f"model.layers.{i}.mlp.{kind}" for i in range(12) for kind in ("up_proj", "down_proj")]
    rows = [Estimate(name=m, value=0.0, parts={"z": z if i == 3 else 0.5}) for i, m in enumerate(names)]
    axes = axes_of(module_map, SimpleNamespace(of=lambda family: rows))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["up_proj", "down_proj"]
    (mesh,) = axes.collections
    assert mesh.get_array().shape == (2, 12)
    assert mesh.get_array()[1, 1] == z
    assert title in axes.get_title(loc="left")
    (bar,) = axes.child_axes
    assert [label.get_text() for label in bar.get_yticklabels()] == [f"\u2212{z:.1f}", "0.0", f"{z:.1f}"]
    assert drawn("m", module_map, SimpleNamespace(of=lambda family: [])) is None
    assert layer_and_kind("transformer.h.3.attn.c_attn") == (3, "c_attn")
    assert [layer_and_kind(name) for name in ("lm.head", "0.linear")] == [(-1, "head"), (0, "linear")]


def test_distribution_has_one_mark_a_prompt(analysis: Analysis) -> None:
    """Prompts are the unit: two hacks of one prompt are one mark at their mean; of very many, an even part is drawn."""
    points = series(axes_of(distribution, analysis))
    assert {label: len(of) for label, of in points.items()} == {
        "hacks of a prompt": 6,
        "other rollouts of a prompt": 6,
        "mean of prompts, 95%": 2,
    }
    samples = [sample for sample in analysis.samples if sample.arm == analysis.measured_arm]
    by_prompt = [[s.cos_S_contrib for s in samples if s.step == step and s.hacked] for step in range(6)]
    assert {len(values) for values in by_prompt} == {2}
    expected = sorted(float(np.mean(values)) for values in by_prompt)
    assert [x for x, _ in points["hacks of a prompt"]] == pytest.approx(expected)
    assert any(x == pytest.approx(np.mean(expected)) for x, _ in points["mean of prompts, 95%"])
    row = {"arm": "vanilla", "src_pool": "base", "hacked": True, "sure": True}
    samples = [SimpleNamespace(**row, problem_id=str(i), cos_S_contrib=i + 1) for i in range(900)]
    many = axes_of(distribution, SimpleNamespace(records=SimpleNamespace(samples=samples), measured_arm="vanilla"))
    assert MARKS / 2 < len(series(many)["hacks of a prompt"]) <= MARKS


def hostile(axes) -> None:
    axes.plot([0, 1], [0, 1], color=INK, label="<b>$x$\u202e\x00 \U0001f600")
    axes.plot([0, 1], [1, 0], color=HACK, label='" onload="x')
    axes.set_title("t")


def test_a_figure_in_a_page_is_bare_markup() -> None:
    """No style, no colour of its own, no id of another figure; names of others are text; the same bytes again."""
    first, second = drawn("one", hostile), drawn("two", hostile)
    assert first is not None
    assert second is not None
    text = first.svg
    root = ET.fromstring(text)
    assert not [node for node in root.iter() if "style" in node.attrib or node.tag in ("style", "metadata", "image")]
    assert not [color for color in COLORS.values() if color in text]
    assert "var(--ink)" in text
    words = "".join(root.itertext())
    assert "<b>$x$\\u202e\\x00" in words
    assert '" onload="x' in words
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert ids
    assert len(set(ids)) == len(ids)
    assert not set(ids) & set(re.findall(r'\bid="([^"]*)"', second.svg))
    assert set(re.findall(r"[\"(]#([\w-]+)[\")]", text)) == set(ids)
    again = drawn("one", hostile)
    assert again is not None
    assert again.svg == text


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("svg", b"<?xml"),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in (("pdf", b"%PDF"), ("png", b"\x89PNG"))),
    ],
)
def test_figures_are_files_in_three_formats(tmp_path, kind, begins: bytes) -> None:
    """For a page, a paper and a slide: the same bytes each time."""
    written = []
    for place in ("a", "b"):
        figure = drawn("f", hostile)
        assert figure is not None
        written.append(figure.save(tmp_path / place, kind).read_bytes())
    assert written[0] == written[1]
    assert written[0].startswith(begins)
