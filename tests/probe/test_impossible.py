"""What cannot happen in a spec is refused before its sweep: all faults at once, each with place and fix."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from probe.analysis.metric_table import estimate
from probe.analysis.statistics.power import sign_flip_mde
from probe.analysis.statistics.significance import sign_flip_test
from probe.cli import cli
from probe.cli._frame import run
from probe.experiments.planning.checks import input_faults, open_spec, undecidable
from probe.experiments.spec.floors import sign_flip_floor
from probe.experiments.spec.prereg import decide, load_spec
from probe.experiments.spec.reach import possible_verdicts
from replay_pools.errors import InputErrors

HEAD = """
arms = ["vanilla", "random"]
seeds = [{seeds}]
[experiment]
name = "asked"
question = "Can it be decided?"
hypotheses = ["It can."]
[settings]
{settings}
"""
TRAIN = 'verb = "train"\npreset = "smoke"'
CRITERION = """
[[criteria]]
name = "{name}"
metric = "{metric}"
statistic = "{statistic}"
comparison = "{comparison}"
threshold = {threshold}
unit = "{unit}"
role = "{role}"
arm = "{arm}"
{more}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(*criteria, decisions=..., seeds=..., settings=...) -> a spec; a criterion is "NAME STATISTIC COMPARISON
    THRESHOLD", or (that text, {key: value}); decisions are {name: requires in TOML}.
    """

    def make(*criteria, decisions: dict[str, str] | None = None, seeds: int = 8, settings: str = TRAIN) -> Path:
        text = HEAD.format(seeds=", ".join(map(str, range(seeds))), settings=settings)
        for number, criterion in enumerate(criteria):
            words, changes = criterion if isinstance(criterion, tuple) else (criterion, {})
            name, statistic, comparison, threshold = words.split(" ", 3)
            values = {
                "arm": "vanilla",
                "metric": "hack_final",
                "unit": "seed",
                "role": "check" if number else "primary",
                "more": "",
            }
            values |= {"name": name, "statistic": statistic, "comparison": comparison, "threshold": threshold}
            text += CRITERION.format(**values | changes)
        for name, requires in (decisions or {}).items():
            text += f'[[decisions]]\nname = "{name}"\nrequires = {{ {requires} }}\n'
        path = tmp_path / "asked.toml"
        path.write_text(text + '[[decisions]]\nname = "ELSE"\n')
        return path

    return make


def faults(path: Path, out: Path = Path("out")) -> dict[str, str]:
    """{place: expected, found and fix} of what is refused."""
    refused = {}
    for error in undecidable(load_spec(path), out):
        assert error.fix or "null" in error.expected, error
        where = error.where.removeprefix(str(path)).strip()
        refused[where] = f"{error.expected}; {error.found}; {error.fix}"
    return refused


def test_a_sound_spec_is_not_refused(write: Callable[..., Path]) -> None:
    path = write("a mean > 0.2", "b p < 0.05", decisions={"GO": 'a = "PASS", b = "PASS"', "A": 'a = "PASS"'})
    assert faults(path) == {}
    open_spec(path)


CONTRADICTIONS = [
    ("a mean > 0.2", "b mean < 0.1", "PASS", "PASS"),
    ("a lower95 > 0.2", "b upper95 < 0.1", "PASS", "PASS"),
    ("a value >= 0.2", "b max < 0.2", "PASS", "PASS"),
    ("a min > 0.2", "b value <= 0.2", "PASS", "PASS"),
    ("a interval90 inside [-0.1, 0.1]", "b lower95 > 0.1", "PASS", "PASS"),
    ("a mean > 0.2", "b mean > 0.1", "PASS", "FAIL"),
    ("a upper95 < 0.1", "b upper95 < 0.2", "PASS", "FAIL"),
]
POSSIBLE = [
    ("a mean > 0.1", "b mean < 0.2", "PASS", "PASS"),
    ("a value >= 0.2", "b value <= 0.2", "PASS", "PASS"),
    ("a lower95 < 0.1", "b upper95 > 0.2", "PASS", "PASS"),
    ("a min < 0.1", "b max > 0.2", "PASS", "PASS"),
    ("a mean > 0.2", "b mean > 0.1", "FAIL", "PASS"),
    ("a interval90 inside [-0.1, 0.1]", "b lower95 > 0.2", "FAIL", "PASS"),
    ("a mean > 0.2", "b mean > 0.1", "PASS", "INCONCLUSIVE"),
]


@pytest.mark.parametrize(("one", "two", "first", "second"), CONTRADICTIONS)
def test_criteria_that_exclude_one_another_are_named(
    write: Callable[..., Path], one: str, two: str, first: str, second: str
) -> None:
    found = faults(write(one, two, decisions={"BOTH": f'a = "{first}", b = "{second}"'}))
    assert list(found) == ["decisions.BOTH.requires"]
    assert f"a {first}" in found["decisions.BOTH.requires"]
    assert f"b {second}" in found["decisions.BOTH.requires"]


@pytest.mark.parametrize(("one", "two", "first", "second"), POSSIBLE)
def test_criteria_that_fit_are_left_alone(
    write: Callable[..., Path], one: str, two: str, first: str, second: str
) -> None:
    assert faults(write(one, two, decisions={"BOTH": f'a = "{first}", b = "{second}"'})) == {}


def test_other_metrics_and_conditions_do_not_contradict(write: Callable[..., Path]) -> None:
    other = ("b mean < 0.1", {"metric": "solve_final"})
    compared = ("c mean < 0.1", {"more": 'versus_arm = "random"'})
    assert faults(write("a mean > 0.2", other, compared, decisions={"ALL": 'a = "PASS", b = "PASS", c = "PASS"'})) == {}


def test_a_criterion_without_an_arm_is_about_the_arm_that_stands_for_vanilla_there(write: Callable[..., Path]) -> None:
    """Under a condition of `random` alone that is `random`, though the spec has vanilla."""
    one = ("a mean > 0.2", {"arm": "random", "more": 'condition = "apart"'})
    two = ("b mean < 0.1", {"arm": "NONE", "more": 'condition = "apart"'})
    path = write(one, two, decisions={"BOTH": 'a = "PASS", b = "PASS"'})
    apart = '[[conditions]]\nname = "plain"\n[[conditions]]\nname = "apart"\narms = ["random"]\n'
    path.write_text(path.read_text().replace('arm = "NONE"\n', "").replace("[settings]", f"{apart}[settings]"))
    assert list(faults(path)) == ["decisions.BOTH.requires"]


SHADOWED = [
    ({"ONE": 'a = "PASS"', "TWO": 'a = "PASS", b = "PASS"'}, {"TWO": "ONE before it, which requires less"}),
    ({"ONE": 'a = ["PASS", "FAIL"]', "TWO": 'a = "FAIL"'}, {"TWO": "put it before ONE"}),
    (
        {
            "ONE": 'a = "PASS", b = "PASS"',
            "TWO": 'a = "PASS", b = ["FAIL", "INCONCLUSIVE", "VACUOUS"]',
            "X": 'a = "PASS"',
        },
        {"X": "together hold whenever this one does"},
    ),
    ({"ONE": 'outcome = "WORKS"', "TWO": 'outcome = "WORKS", a = "PASS"'}, {"TWO": "which requires less"}),
    ({"ONE": 'outcome = "WORKS"', "TWO": 'outcome = ["WORKS", "COSTS"], a = "PASS"'}, {}),
    ({"ONE": 'a = "PASS", b = "PASS"', "TWO": 'a = "PASS"'}, {}),
]


@pytest.mark.parametrize(("decisions", "named"), SHADOWED)
def test_decisions_behind_others_are_named(
    write: Callable[..., Path], decisions: dict[str, str], named: dict[str, str]
) -> None:
    primary = ("a mean > 0.2", {"arm": "random"})  # a training's outcome is that of an arm beside vanilla
    found = faults(write(primary, ("b mean > 0.5", {"metric": "solve_final"}), decisions=decisions))
    assert list(found) == [f"decisions.{name}.requires" for name in named]
    for name, words in named.items():
        assert words in found[f"decisions.{name}.requires"]


def test_reach_agrees_with_the_decision_itself(write: Callable[..., Path]) -> None:
    """Criteria of different metrics: every combination of verdicts is decided, and what is never taken is named."""
    rng = np.random.default_rng(0)
    words = ("PASS", "FAIL", "INCONCLUSIVE", "VACUOUS")
    criteria = [
        "a mean > 0.0",
        ("b mean > 0.0", {"metric": "solve_final"}),
        ("c p < 0.05", {"metric": "exploit_final"}),
    ]
    counts = {True: 0, False: 0}
    for _ in range(60):
        decisions = {}
        for name in ("ONE", "TWO", "THREE", "FOUR"):
            required = []
            for criterion in rng.permutation(["a", "b", "c"])[: rng.integers(1, 4)]:
                allowed = rng.permutation(words)[: rng.integers(1, 4)].tolist()
                required.append(f"{criterion} = {allowed}")
            decisions[name] = ", ".join(required)
        path = write(*criteria, decisions=decisions)
        spec = load_spec(path)
        taken = set()
        for verdicts in product(*(possible_verdicts(criterion) for criterion in spec.criteria)):
            named = dict(zip("abc", verdicts, strict=True))
            taken.add(decide(spec, named).name)
        for name in decisions:
            never = name not in taken
            assert never == (f"decisions.{name}.requires" in faults(path)), (name, decisions)
            counts[never] += 1
    assert min(counts.values()) > 20, counts


def test_a_verdict_that_a_criterion_cannot_have(write: Callable[..., Path]) -> None:
    """A p above its level is INCONCLUSIVE, never FAIL; what is vacuous before the first run is never PASS."""
    found = faults(write("a p < 0.05", decisions={"NO": 'a = "FAIL"'}))
    assert "a to be one of INCONCLUSIVE, PASS, VACUOUS; FAIL" in found["decisions.NO.requires"]
    gate = ("a mean <= 0.0", {"metric": "cos_out", "unit": "prompt", "more": 'null = "none"'})
    path = write(gate, decisions={"GO": 'a = "PASS"'}, seeds=1, settings='verb = "replay"')
    text = (
        path.read_text()
        .replace('"vanilla", "random"', '"vanilla", "projected"')
        .replace('arm = "vanilla"', 'arm = "projected"')
    )
    path.write_text(text)
    assert "a to be one of FAIL, INCONCLUSIVE, VACUOUS; PASS" in faults(path)["decisions.GO.requires"]


@pytest.mark.parametrize(("seeds", "refused"), [(1, True), (4, True), (5, True), (6, False), (12, False)])
def test_seeds_that_sign_flips_cannot_use(write: Callable[..., Path], seeds: int, refused: bool) -> None:
    """2 / 2^n is not below .05 up to five seeds; Welch's test of two has no such floor."""
    paired = ("a p < 0.05", {"more": 'versus_arm = "random"'})
    found = faults(write(paired, seeds=seeds))
    assert (list(found) == ["criteria.a.threshold"]) == refused
    if refused:
        assert f"a level above {2 / 2**seeds:.3g}, the smallest p of {seeds} seeds" in found["criteria.a.threshold"]
    welch = ("a p < 0.05", {"more": 'versus_arm = "random"\npaired = false'})
    assert (faults(write(welch, seeds=seeds)) == {}) == (seeds > 1)


@pytest.mark.parametrize("n", [1, 3, 6, 16])
def test_the_floor_is_that_of_the_test(n: int) -> None:
    """Differences of one sign and size: nothing reads a smaller p."""
    assert estimate({str(i): 1.0 for i in range(n)}, "seed").p == pytest.approx(sign_flip_floor(n))


def test_a_family_needs_smaller_p_values(write: Callable[..., Path]) -> None:
    """2 / 2^6 = .031 alone; of two such criteria Holm asks for twice that. A Welch test beside it has no floor."""
    one = ("a p < 0.05", {"more": 'versus_arm = "random"'})
    two = ("b p < 0.05", {"metric": "solve_final", "more": 'versus_arm = "random"'})
    found = faults(write(one, two, seeds=6))
    assert sorted(found) == ["criteria.a.threshold", "criteria.b.threshold"]
    assert "0.0625, the smallest p of 6 seeds after Holm" in found["criteria.a.threshold"]
    welch = ("b p < 0.05", {"metric": "solve_final", "more": 'versus_arm = "random"\npaired = false'})
    assert faults(write(one, welch, seeds=6)) == {}
    assert faults(write(one, two, seeds=7)) == {}


def test_the_prompts_of_a_replay_are_counted(write: Callable[..., Path]) -> None:
    """As many as its pools and its steps give: 5 are too few for sign flips, 20 are not."""
    cosine = ("a p < 0.05", {"metric": "cos_in", "unit": "prompt", "more": 'null = "N2"'})
    for steps, refused in ((5, True), (20, False)):
        path = write(cosine, seeds=1, settings=f'verb = "replay"\nsteps = {steps}')
        assert (faults(path) != {}) == refused
    area = {"metric": "auroc", "unit": "prompt"}
    replay = {"seeds": 1, "settings": 'verb = "replay"'}
    assert "has no p of its own" in faults(write(("a p < 0.05", area), **replay))["criteria.a.statistic"]
    null = area | {"more": 'null = "N2"'}
    assert faults(write(("a p < 0.05", null), **replay)) == {}
    assert "0.001, the smallest p" in faults(write(("a p < 0.001", null), **replay))["criteria.a.threshold"]


@pytest.mark.parametrize("statistic", ["mean", "lower95", "upper95"])
def test_one_seed_has_no_interval(write: Callable[..., Path], statistic: str) -> None:
    found = faults(write(f"a {statistic} > 0.1", seeds=1))
    assert "at least 2 seeds" in found["criteria.a"]
    assert faults(write("a value > 0.1", seeds=1)) == {}


def test_all_faults_are_refused_at_once(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """plan and sweep print a line for each; nothing is written."""
    decisions = {"ONE": 'a = "PASS"', "TWO": 'a = "PASS", b = "PASS"', "NO": 'b = "FAIL"'}
    path = write("a mean > 0.2", "b p < 0.05", decisions=decisions, seeds=3)
    with pytest.raises(InputErrors):
        open_spec(path)
    out = tmp_path / "out"
    for command in (["plan", str(path)], ["sweep", str(path)], ["sweep", str(path), "--dry-run"]):
        assert run(cli, [*command, "--out", str(out)]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 3, lines
        for line, place in zip(lines, ("criteria.b.threshold", "decisions.TWO", "decisions.NO"), strict=True):
            assert line.startswith(f"probe: error: {path} {place}")
    assert not out.exists()


def test_metrics_that_do_not_exist_are_named_at_once(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(("a mean > 0.0", {"metric": "hack_finl"}), ("b mean > 0.0", {"unit": "pair"}))
    assert run(cli, ["plan", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert ["criteria.a.metric" in lines[0], "criteria.b.unit" in lines[1]] == [True, True], lines


def test_inputs_that_are_not_there_or_do_not_serve(write: Callable[..., Path], tmp_path: Path) -> None:
    """A direction file, pools without a problem in common, log-probabilities that nobody recorded."""
    cosine = ("a mean > 0.0", {"metric": "cos_in", "unit": "prompt", "more": 'null = "N2"'})
    named = write(cosine, seeds=1, settings='verb = "replay"\nintervention.v_hack = "mine"')
    (missing,) = input_faults(load_spec(named), tmp_path)
    assert ("intervention.v_hack" in missing.where, missing.found) == (True, "'mine'")
    (tmp_path / "directions").mkdir()
    (tmp_path / "directions" / "mine.safetensors").touch()
    assert input_faults(load_spec(named), tmp_path) == []
    apart = 'verb = "replay"\nsource = { replay_dirs = ["teacher", "base"], match = "prompt" }'
    (unmatched,) = input_faults(load_spec(write(cosine, seeds=1, settings=apart)), tmp_path)
    assert unmatched.expected == "steps that match by prompt"


@pytest.mark.parametrize("n", [6, 7, 9, 17])
def test_the_power_of_sign_flips(n: int) -> None:
    """At the effect that is said to be found with 80% power, 1500 draws find it 76 to 84% of the time."""
    rng, effect = np.random.default_rng(0), sign_flip_mde(2.0, n)
    p_values = [sign_flip_test(rng.normal(effect, 2.0, n), num_draws=999) for _ in range(1500)]
    assert 0.75 < np.mean(np.array(p_values) < 0.05) < 0.84


def test_five_differences_find_nothing() -> None:
    assert sign_flip_mde(1.0, 5) == np.inf
