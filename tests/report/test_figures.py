"""Figures against the numbers that they draw: positions, counts, rings, sums."""

import math

import numpy as np
import pytest
from drawn import marks, tips
from hypothesis import given
from hypothesis import strategies as st

from probe.analysis.measures.contrasts import Cell
from probe.analysis.statistics.intervals import Interval
from probe.analysis.statistics.permutation import ModuleRow
from probe.analysis.statistics.power import mde
from probe.report.figures.distribution import distribution
from probe.report.figures.forest import ForestRow, forest
from probe.report.figures.hack_vs_clean import cells
from probe.report.figures.learning import BOTTOM, NAME_HEIGHT, write_names
from probe.report.figures.modules import module_map, place
from probe.report.figures.panel import Panel, Scale, scale_of, tick_label
from probe.report.figures.power import prompts_power
from probe.report.figures.scatter import LENGTH, scatter
from probe.report.figures.trajectory import extent_of, trajectory
from probe.report.html import clean, node, number, to_html, to_svg
from probe.report.trainings import group_names
from replay_pools.visible import is_invisible

finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(values=st.lists(finite, min_size=1, max_size=20))
def test_a_scale_holds_its_values_and_its_ticks_are_round_and_inside(values: list[float]) -> None:
    scale = scale_of(values, 10.0, 90.0)
    assert all(10 <= scale(value) <= 90 for value in values)
    ticks = scale.ticks(5)
    assert all(scale.low <= tick <= scale.high for tick in ticks)
    if len(ticks) > 1:
        step = ticks[1] - ticks[0]
        mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(mantissa - m) for m in (1, 2, 5, 10)) < 1e-6
        labels = [tick_label(tick, step) for tick in ticks]
        assert len(set(labels)) == len(labels), "two ticks read the same"
        for tick, label in zip(ticks, labels):
            assert float(label.replace("\u2212", "-").replace(",", "")) == pytest.approx(tick, abs=step * 1e-6)


def test_whole_ticks_have_no_fractions() -> None:
    assert Scale(-0.7, 0.7, 0, 1).ticks(6, whole=True) == [0.0]
    assert Scale(-0.7, 3.7, 0, 1).ticks(6, whole=True) == [0.0, 1.0, 2.0, 3.0]


@given(text=st.text(max_size=60))
def test_text_is_escaped_whatever_it_is(text: str) -> None:
    """Written out and parsed again, a text is what it was; nothing in it becomes an element or an attribute."""
    import html.parser

    class Reader(html.parser.HTMLParser):
        tags: list[str] = []
        data = ""

        def handle_starttag(self, tag, attrs):
            self.tags = [*self.tags, tag]
            self.attributes = dict(attrs)

        def handle_data(self, data):
            self.data += data

    reader = Reader(convert_charrefs=True)
    reader.feed(to_html(node("p", text, title=text)))
    reader.close()
    assert reader.tags == ["p"]
    assert reader.data == clean(text)
    assert reader.attributes == {"title": clean(text)}
    assert not any(is_invisible(part) and part not in "\t\n" for part in clean(text))


@given(value=finite)
def test_coordinates_keep_two_decimals(value: float) -> None:
    assert float(number(value)) == pytest.approx(value, abs=0.00501)
    assert "e" not in number(value)


def test_a_file_of_its_own_leaves_the_page_as_it_is() -> None:
    figure = node("svg", node("a", node("circle", r=1), href="#x"), viewBox="0 0 10 10")
    before = to_html(figure)
    text = to_svg(figure, "text { fill: red }")
    assert "href" not in text
    assert "<circle" in text
    assert to_html(figure) == before


def test_forest_rows_are_where_their_values_are() -> None:
    """Marks in the order of the values, intervals around them, no mark for a row without a value."""
    values = [0.3, -0.2, 0.05, None]
    rows = [
        ForestRow(
            label=f"row {i}", note="", value=v, interval=None if v is None else Interval(low=v - 0.1, high=v + 0.1)
        )
        for i, v in enumerate(values)
    ]
    drawn = forest("f", "title", rows, label="x")
    dots, bars = marks(drawn, "circle", "mark"), marks(drawn, "line", "bar")
    places = [float(dot.attrib["cx"]) for dot in dots]
    assert len(places) == len(bars) == 3
    assert np.argsort(places).tolist() == [1, 2, 0]
    for dot, bar in zip(places, bars):
        assert (float(bar.attrib["x1"]) + float(bar.attrib["x2"])) / 2 == pytest.approx(dot, abs=0.02)
    assert forest("f", "title", [ForestRow(label="", note="", value=None)], label="x") is None


def test_rings_are_the_modules_beyond_the_threshold() -> None:
    names = [f"model.layers.{i}.mlp.{kind}" for i in range(12) for kind in ("up_proj", "down_proj")]
    rows = [ModuleRow(module=m, mean_cos=0.0, z=float(z), p_max_t=0.5) for m, z in zip(names, np.linspace(-4, 4, 24))]
    drawn = module_map("m", rows, 3.0)
    ringed = [tip.partition(":")[0] for tip in tips(drawn, "rect", "ring")]
    assert ringed == [row.module for row in rows if abs(row.z) > 3]
    assert len(tips(drawn, "rect", "hack")) == sum(row.z > 0 for row in rows)
    assert len(tips(drawn, "rect", "clean")) == sum(row.z < 0 for row in rows)
    assert not tips(module_map("m", rows, None), "rect", "ring"), "without a threshold nothing is beyond it"
    assert module_map("m", [], 3.0) is None


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
    assert place(module) == expected


def test_distribution_has_one_mark_a_prompt(maker, report_of) -> None:
    """Prompts are the unit: two hacks of one prompt are one mark at their mean."""
    view = report_of(maker(name="marks")).views[0]
    drawn = distribution("d", view.samples, "cos_S_nll", most=1200)
    assert (len(marks(drawn, "circle", "hack")), len(marks(drawn, "circle", "clean"))) == (6, 6)
    first = [s.cos_S_nll for s in view.samples if s.step == 0 and s.hacked]
    assert len(first) == 2
    assert any(f"{np.mean(first):+.3f}".replace("-", "\u2212") in tip for tip in tips(drawn, "circle", "hack"))


def test_trajectories_mark_every_step_once(maker, report_of) -> None:
    """A dot before and one after the gate; a cross where there is no gradient; the same axis for all arms."""
    view = report_of(maker(name="steps")).views[0]
    extent = extent_of(view.run.steps)
    drawn = trajectory("t", view.steps("projected"), extent, trains=False)
    assert len(tips(drawn, "circle", "mark")) == len(tips(drawn, "circle", "hollow")) == 5
    assert len(marks(drawn, "line", "none")) == 2, "one cross, of two strokes"
    left = trajectory("t", view.steps("vanilla"), extent, trains=False)
    assert not tips(left, "circle", "hollow"), "vanilla leaves the gradient alone"
    values = [s.cos_in for s in view.steps("projected") if s.cos_in is not None]
    heights = [float(dot.attrib["cy"]) for dot in marks(drawn, "circle", "mark") if dot.findtext("title")]
    assert np.argsort(values).tolist() == np.argsort(heights)[::-1].tolist()
    assert trajectory("t", [], extent, trains=False) is None


def test_bars_of_cells_add_up_to_the_last() -> None:
    base = {"src_pool": "base", "hint": False, "gt_pass": False, "n": 3, "num_prompts": 2, "mean_advantage": 1.0}
    rows = [
        Cell(**base, hacked=dot > 0, advantage_sign=sign, mean_cos_contrib=None, mean_cos_nll=None, dot=dot)
        for dot, sign in [(0.3, 1), (-0.1, -1), (0.2, 1), (0.0, 0)]
    ]
    drawn = cells("c", rows)
    widths = {
        name: [float(e.attrib["width"]) for e in marks(drawn, "rect", name)] for name in ("hack", "clean", "mark")
    }
    assert (len(widths["hack"]), len(widths["clean"])) == (2, 1), "a cell with A = 0 carries nothing"
    assert sum(widths["hack"]) - sum(widths["clean"]) == pytest.approx(widths["mark"][0], abs=0.05)


def test_scatter_draws_an_even_part_of_very_many_rollouts(maker, report_of) -> None:
    samples = report_of(maker(name="marks")).views[0].samples
    drawn = scatter("s", LENGTH, samples, lambda s: f"#{s.step}" if s.step == 0 else None, most=1200)
    assert len(list(drawn.svg.iter("a"))) == sum(s.step == 0 for s in samples)
    many = scatter("s", LENGTH, samples * 200, lambda s: None, most=1200)
    assert many is not None
    shown = len(tips(many, "circle", "hack")) + len(tips(many, "rect", "clean"))
    assert 600 < shown <= 1200
    assert f"{shown} of {len(samples) * 200} drawn" in "".join(many.svg.itertext())


def test_the_prompts_curve_is_the_one_sample_effect() -> None:
    """At n = this run: mde of the mean of n values with their sd, by the t-test of one sample."""
    values = [0.1, 0.02, 0.05, 0.08, -0.01, 0.04]
    drawn = prompts_power("p", "run", values)
    expected = mde(float(np.std(values, ddof=1)), 6, paired_correlation=0.5)
    assert tips(drawn, "circle", "mark") == [f"6 prompts: {expected:.3f}"]
    assert prompts_power("p", "run", [0.1]) is None


def test_names_beside_curves_keep_apart_and_move_no_further_than_they_have_to() -> None:
    """Four curves that end at the axis push one another up, and not the name of one that ends far above."""
    panel = Panel("p", "title", BOTTOM + 40)
    ends = {"far": 80.0, "a": 204.0, "b": 205.0, "c": 206.0, "d": 206.0}
    write_names(panel, [(height, name, 0) for name, height in ends.items()])
    written = {}
    for text in panel.figure().svg.iter("text"):
        if text.text in ends:
            written[text.text] = float(text.attrib["y"]) - 3.5
    assert written["far"] == 80.0
    assert written["d"] == BOTTOM
    places = [written[name] for name in "abcd"]
    assert np.diff(places).tolist() == [NAME_HEIGHT] * 3


def test_runs_of_one_arm_under_other_settings_are_another_curve() -> None:
    """A mean over seeds is a mean over seeds: not over a penalty or a gate as well."""

    def config(seed: int, arm: str = "vanilla", beta: float = 0.0) -> tuple[str, dict]:
        settings = {"verb": "train", "seed": seed, "preregistered": None}
        settings |= {"intervention": {"arms": [arm]}, "objective": {"beta": beta}}
        return arm, {"settings": settings, "base_weights_sha256": "w", "directions": {"pairs_sha256": "p"}}

    runs = [config(0), config(0, "projected"), config(0, beta=1.0), config(1), config(1, beta=1.0), config(2, "random")]
    assert group_names(runs) == ["vanilla", "projected", "beta 1.0", "vanilla", "beta 1.0", "random"]
    assert group_names([*runs, config(0, "projected", 1.0)])[-1] == "projected: beta", "the other name is taken"
