"""Criteria of a spec: each bound and answer, and the estimates that a criterion can name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from many_arms import Bench, rates
from scipy.stats import ttest_ind
from worlds import World, make_run

from probe.analysis import measures
from probe.analysis.analyze import Analysis, analyze
from probe.analysis.estimate import Estimate, mean_of, welch
from probe.analysis.statistics.intervals import Interval
from probe.analysis.verdict.trained_arms import TrainedArm, compared
from probe.experiments.criteria import evaluate
from probe.experiments.spec import Criterion
from probe.records.run import Run, read_run

FOUND = Estimate(name="cos_in", value=0.3, interval=Interval(low=0.26, high=0.34), n=20, unit="prompt")


def criterion(**changes) -> Criterion:
    made = Criterion(**{"name": "c", "estimate": "cos_in", "role": "check"} | changes)
    made.sides = (("base", "vanilla"),)
    return made


@pytest.mark.parametrize(
    ("bound", "answer"),
    [
        ({"above": 0.2}, "PASS"),
        ({"above": 0.28}, "INCONCLUSIVE"),
        ({"above": 0.34}, "FAIL"),
        ({"below": 0.4}, "PASS"),
        ({"below": 0.3}, "INCONCLUSIVE"),
        ({"below": 0.26}, "FAIL"),
        ({"inside": (0.26, 0.34)}, "PASS"),
        ({"inside": (0.3, 0.5)}, "INCONCLUSIVE"),
        ({"inside": (-0.05, 0.05)}, "FAIL"),
    ],
)
def test_each_bound(bound, answer):
    found = evaluate(criterion(**bound), FOUND)
    assert (found.says, found.n, found.unit) == (answer, 20, "prompt")
    assert found.number is FOUND
    assert evaluate(criterion(**bound), FOUND, "nothing was compared").says == "VACUOUS"


def test_a_number_without_an_interval_decides_nothing_unless_it_describes_the_runs():
    alone = replace(FOUND, interval=None, why="1 prompt alone has no interval")
    assert evaluate(criterion(above=0.2), alone).says == "INCONCLUSIVE"
    assert evaluate(criterion(above=0.2), replace(FOUND, value=None, interval=None)).says == "INCONCLUSIVE"
    for name, answer in (("largest cos_in", "PASS"), ("steps", "PASS"), ("smallest cos_in", "PASS")):
        assert evaluate(criterion(estimate=name, above=0.2), alone).says == answer
    assert evaluate(criterion(estimate="largest cos_in", inside=(0.3, 0.3)), alone).says == "PASS"


def side(arm: str, *runs: Analysis) -> TrainedArm:
    return TrainedArm(condition="", arm=arm, runs=runs)


def test_welch_is_scipys():
    a, b = ([0.8, 0.9, 0.7], [0.3, 0.1])
    sides = [mean_of("kl/mean", {str(i): value for i, value in enumerate(side)}, "seed") for side in (a, b)]
    found, expected = welch(*sides), ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.value, found.n) == (pytest.approx(0.6), 2)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    same = mean_of("kl/mean", {"0": 0.2, "1": 0.2}, "seed")
    assert welch(same, same).interval is None, "equal runs show no variance"


@pytest.mark.parametrize("problems", [0, 24])
def test_a_rate_after_training_has_the_interval_of_the_verdict(problems):
    """One question, one interval: the criterion's is the one that the trained arm's verdict states at 95%."""
    bench = Bench(hack=rates((1, 0.7), (2, 0.4)), solve=rates((3, 0.5)), seeds=4, problems=problems)
    trainings = bench.draw(np.random.default_rng(0))
    arm, vanilla = trainings.treated[0], trainings.baseline
    found = measures.of_training("hack_final", trainings, arm, vanilla)
    assert found == compared(trainings, (arm, vanilla), "hack_final").bounded(name="hack_final")
    assert found.value < 0 < measures.of_training("hack_final", trainings, vanilla).value
    gains = [
        measures.of_training("hack_gain", trainings, *sides).value for sides in ((arm,), (vanilla,), (arm, vanilla))
    ]
    assert gains[0] == compared(trainings, [arm], "hack_final", "hack_start").value
    assert gains[2] == pytest.approx(gains[0] - gains[1])
    few = replace(arm, runs=arm.runs[:2])
    assert measures.of_training("hack_final", trainings, few, vanilla).value is None


def test_numbers_of_training_runs_have_the_seed_as_unit():
    steps = [SimpleNamespace(arm="vanilla", entropy=value, advantage={}, problem_id="p") for value in (0.1, 0.4)]
    run = SimpleNamespace(steps=steps, outcome=None, records=SimpleNamespace())
    arm = SimpleNamespace(arm="vanilla", runs=[run, run], seeds=[7, 8])
    found = measures.of_training("entropy", None, arm)
    assert (found.value, found.n, found.unit, found.interval) == (pytest.approx(0.25), 2, "seed", None)
    largest = measures.of_training("largest entropy", None, arm)
    assert (largest.value, largest.n, largest.unit) == (0.4, 4, "step")


@pytest.fixture(scope="module")
def catalogued(replay: Callable[..., Path], quick: list[str]) -> Run:
    """Without a penalty, with one beside a ratio and a clip, and with one alone."""
    more = "kl:beta=0.1,reference=recorded,old_logprobs=recorded,epsilon=0.2,advantage_clip=0.1"
    names = ("default", more, "penalised:beta=1,reference=recorded,min_group_std=1.4")
    conditions = [word for name in names for word in ("--condition", name)]
    return read_run(replay("catalogued", *quick[:2], "--arm", "vanilla", "--steps", "8", *conditions))


MOVING = ("cos_update", "hackward_frac_update", "direction_overlap", "entropy", "ratio/staleness", "solve_teacher")


def test_a_replay_has_the_estimates_that_a_criterion_may_name(catalogued: Run) -> None:
    """Except shares, which need hacks that no trivial score separates (below), and numbers of moving weights."""
    runs = [analyze(catalogued, name) for name in ("default", "kl")]
    missing = set()
    for name in measures.names(trains=False):
        found = [measures.of_replay(name, side("vanilla", run)) for run in runs]
        if all(one.value is None and not one.why.startswith("the ") for one in found):
            missing.add(name.removeprefix("largest ").removeprefix("smallest "))
    kl = {f"kl/{key}" for key in ("from_base", "beta", "warmup_progress", "ema", "beta_adjusted")}
    shares = {"contrast", "removed/margin", "removed/hacks", "removed/honest", "own hacks", "auroc/logratio"}
    assert missing <= kl | shares | {*MOVING}, missing - kl - shares - {*MOVING}


def test_estimates_of_two_sides_are_paired_by_prompt(tmp_path: Path) -> None:
    found = analyze(read_run(make_run(tmp_path / "a" / "runs" / "run", World(num_steps=12))))
    cosines = {
        arm: {step.problem_id: step.cos_in for step in found.steps if step.arm == arm} for arm in ("vanilla", "random")
    }
    by_hand = [cosines["vanilla"][prompt] - cosines["random"][prompt] for prompt in cosines["vanilla"]]
    compared = measures.of_replay("cos_in", side("vanilla", found), side("random", found))
    assert (compared.value, compared.n) == (pytest.approx(np.mean(by_hand)), 12)
    sides = side("vanilla", found), side("vanilla", found)
    assert measures.are_identical("cos_in", *sides)
    assert not measures.are_identical("cos_in", sides[0], side("random", found))
    twice = measures.of_replay("cos_in", side("vanilla", found, found))
    assert twice.n == 12, "two seeds of the same prompts"


def test_shares_are_those_of_the_analysis(tmp_path: Path) -> None:
    world = World(num_steps=12)
    found = analyze(read_run(make_run(tmp_path / "a" / "runs" / "run", world)))
    for name in ("pull", "contrast", "pull - benign", "removed/margin", "removed/honest"):
        assert measures.of_replay(name, side("vanilla", found)).is_bounded, name
    assert measures.of_replay("pull", side("vanilla", found)) is found.get("shares", "pull")
    nothing = analyze(read_run(make_run(tmp_path / "b" / "runs" / "run", replace(world, num_held_out=0))))
    assert measures.of_replay("pull", side("vanilla", nothing)).value is None


def test_a_gradient_of_a_penalty_alone_has_no_nulls(catalogued: Run) -> None:
    """Where all advantages are 0 the KL term still moves the policy: inner products miss it, and a part says so."""
    steps = [step for step in catalogued.steps if step.condition == "penalised" and step.cos_in is not None]
    assert [step for step in steps if step.advantage["advantage/abs_max"] == 0], "no step without advantages"
    found = analyze(catalogued, "penalised")
    assert found.of("shares") == found.of("modules") == []
    assert any("a KL penalty" in part.text for part in found.validity)
