"""Figures against the numbers that they draw: series, labels, units; and their markup in the page."""

import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import axes_of, series

from probe.analysis.analyze import Analysis
from probe.analysis.cosines import Cell
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.intervals import Interval
from probe.report.drawing import COLORS, HACK, INK, drawn
from probe.report.run_figures import (
    FIGURES,
    MARKS,
    Row,
    cells,
    distribution,
    forest,
    layer_and_kind,
    module_map,
    trajectory,
)
from probe.report.training_figures import FIGURES as OF_TRAINING
from probe.report.trainings import trained_arms


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
    figures += [drawn(name, draw, treatments, *what) for name, draw, what in OF_TRAINING]
    found = [figure for figure in figures if figure is not None]
    assert len(found) >= 12
    for figure in found:
        (axes,) = figure.canvas.axes
        assert figure.title, figure.name
        assert axes.get_xlabel(), figure.name
        assert axes.get_ylabel() or not len(axes.get_yticks()), figure.name
        labels = set(axes.get_legend_handles_labels()[1])
        legend = {text.get_text() for each in figure.canvas.legends for text in each.get_texts()}
        assert labels == legend, figure.name


def test_a_forest_has_its_values_in_order_with_their_intervals() -> None:
    """No mark for a row without a value; nothing drawn without any."""
    values = [0.3, -0.2, None, 0.05]
    rows = [Row(f"row {i}", "", v, Interval(low=v - 0.1, high=v + 0.1) if v else None) for i, v in enumerate(values)]
    axes = axes_of(lambda axes: forest(axes, rows, strong="measured"))
    assert series(axes)["measured"] == [(0.3, 0), (-0.2, 1), (0.05, 2)]
    ends = [tuple(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 2]
    assert ends == [pytest.approx((v - 0.1, v + 0.1)) for v in values if v]
    assert [text.get_text() for text in axes.texts][::2] == ["row 0", "row 1", "row 3"]
    assert drawn("f", forest, [Row("", "", None)]) is None


def test_the_module_map_has_a_place_for_every_module() -> None:
    names = [f"model.layers.{i}.mlp.{kind}" for i in range(12) for kind in ("up_proj", "down_proj")]
    rows = [Estimate(name=m, value=0.0, parts={"z": float(z)}) for m, z in zip(names, np.linspace(-4, 4, 24))]
    axes = axes_of(module_map, SimpleNamespace(of=lambda family: rows))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["up_proj", "down_proj"]
    assert len(axes.patches) == 24
    assert drawn("m", module_map, SimpleNamespace(of=lambda family: [])) is None


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("model.layers.17.self_attn.q_proj", (17, "q_proj")),
        ("transformer.h.3.attn.c_attn", (3, "c_attn")),
        ("lm.head", (-1, "head")),
        ("0.linear", (0, "linear")),
    ],
)
def test_modules_are_placed_by_layer_and_projection(module: str, expected: tuple[int, str]) -> None:
    assert layer_and_kind(module) == expected


def test_distribution_has_one_mark_a_prompt(analysis: Analysis) -> None:
    """Prompts are the unit: two hacks of one prompt are one mark at their mean; of very many, an even part is drawn."""
    points = series(axes_of(distribution, analysis, "cos_S_nll"))
    assert {label: len(of) for label, of in points.items()} == {
        "hacked: a prompt": 6,
        "clean: a prompt": 6,
        "mean of prompts, 95%": 2,
    }
    by_prompt = [[s.cos_S_nll for s in analysis.samples if s.step == step and s.hacked] for step in range(6)]
    assert {len(values) for values in by_prompt} == {2}
    expected = sorted(float(np.mean(values)) for values in by_prompt)
    assert [x for x, _ in points["hacked: a prompt"]] == pytest.approx(expected)
    assert any(x == pytest.approx(np.mean(expected)) for x, _ in points["mean of prompts, 95%"])
    samples = [
        SimpleNamespace(arm="vanilla", src_pool="base", hacked=True, sure=True, problem_id=str(i), cos_S_nll=i)
        for i in range(900)
    ]
    many = series(
        axes_of(
            distribution, SimpleNamespace(records=SimpleNamespace(samples=samples), measured_arm="vanilla"), "cos_S_nll"
        )
    )
    assert MARKS / 2 < len(many["hacked: a prompt"]) <= MARKS


def test_trajectories_mark_every_step_once(analysis: Analysis) -> None:
    """A dot before and one after the gate, a cross where there is no gradient, the same axis for all arms."""
    axes = axes_of(trajectory, analysis, "projected")
    points, steps = series(axes), [step for step in analysis.steps if step.arm == "projected"]
    assert points["cos_in"] == [(step.step, step.cos_in) for step in steps if step.cos_in is not None]
    assert points["cos_out"] == [(step.step, step.cos_out) for step in steps if step.cos_out is not None]
    assert [x for x, _ in points["no gradient"]] == [1]
    vanilla = axes_of(trajectory, analysis, "vanilla")
    assert "cos_out" not in series(vanilla), "vanilla leaves the gradient alone"
    assert vanilla.get_ylim() == axes.get_ylim()


def test_bars_of_cells_add_up_to_the_last() -> None:
    base = {"src_pool": "base", "hint": False, "gt_pass": False, "n": 3, "num_null": 0, "num_prompts": 2}
    means = {"mean_advantage": 1.0, "mean_cos_contrib": None, "mean_cos_nll": None}
    rows = [
        Cell(**base, **means, hacked=dot > 0, advantage_sign=sign, dot=dot)
        for dot, sign in [(0.3, 1), (-0.1, -1), (0.2, 1), (0.0, 0)]
    ]
    bars = [bar.get_width() for bar in axes_of(cells, SimpleNamespace(cells=rows)).patches]
    assert bars == pytest.approx([0.3, -0.1, 0.2, 0.4]), "a cell with A = 0 carries nothing"


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


@pytest.mark.parametrize(("kind", "begins"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_figures_are_files_in_three_formats(tmp_path, kind, begins: bytes) -> None:
    """For a page, a paper and a slide: the same bytes each time."""
    written = []
    for place in ("a", "b"):
        figure = drawn("f", hostile)
        assert figure is not None
        written.append(figure.save(tmp_path / place, kind).read_bytes())
    assert written[0] == written[1]
    assert written[0].startswith(begins)
