"""Every verdict after training, reached by `probe analyze` on planted runs: real files, readers and commands."""

import contextlib
import io
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from gallery import check_gallery
from printed import check_command
from specs import LOWERS, MORE, PENALTY, criterion, training_spec
from trainings import Planted, Rates, seal

from probe.analysis.formatting import WIDTH
from probe.analysis.training_runs import TrainingOutcome
from probe.analysis.verdict.outcome import next_step, questions
from probe.analysis.verdict.trained_arms import TrainedArm, Trainings, of_runs, step_down
from probe.cli import cli
from probe.cli._frame import run
from probe.experiments.judge import evaluate_spec
from probe.settings.presets import configure
from probe.settings.remedy import TRAITS
from probe.settings.verbs import RunConfig
from probe.settings.words import ALL, OF_ARM, Outcome

GRADIENT_AND_KL = {"gradient": {}, "kl": PENALTY}
DECISIONS = [
    {"name": "SCALE", "then": "up", "requires": {"outcome": "WORKS"}},
    {"name": "PRICE", "requires": {"outcome": "LOWERS"}},
    {"name": "ELSEWHERE", "requires": {"outcome": ["DOMINATED", "COSTS", "NO EFFECT"]}},
    MORE,
]


def after(num_seeds: int, **parts: Any) -> str:
    """The spec of all worlds."""
    usual = {"arms": ["vanilla", "projected", "random"], "conditions": GRADIENT_AND_KL, "decisions": DECISIONS}
    question = "Does projection keep a policy from learning the hack?"
    return training_spec("after", seeds=[*range(num_seeds)], question=question, **usual | parts)


LEARNT: Rates = (0.02, 0.55, 0.7, 0.5)
IDLE: Rates = (0.02, 0.55, 0.68, 0.48)
COSTLY: Rates = (0.02, 0.55, 0.05, 0.1)
GOOD: Rates = (0.02, 0.55, 0.15, 0.6)
BAD: Rates = (0.02, 0.55, 0.4, 0.15)
# What a world is about: rates of vanilla, projected, random, kl; seeds; verdict on projected; words; decision.
WORLDS: dict[str, tuple[tuple[Rates, ...], int, str, str, str]] = {
    "works": ((LEARNT, GOOD, IDLE, BAD), 6, "WORKS", "half of this drop with 80% power", "SCALE"),
    "dominated": ((LEARNT, GOOD, IDLE, (0.02, 0.55, 0.04, 0.8)), 6, "DOMINATED", "use vanilla (kl)", "ELSEWHERE"),
    "costs": ((LEARNT, COSTLY, IDLE, BAD), 4, "COSTS", "intervention.extraction.k 2 instead of 4", "ELSEWHERE"),
    "no-effect": ((LEARNT, IDLE), 12, "NO EFFECT", "intervention.extraction.k 8 instead of 4", "ELSEWHERE"),
    "no-question": (((0.02, 0.55, 0.03, 0.6),) * 4, 4, "NO QUESTION", "vanilla alone for 128 steps", "MORE"),
    "lowers": ((LEARNT, (0.02, 0.55, 0.15, 0.3), IDLE, BAD), 3, "LOWERS", 'decide "What does it cost', "PRICE"),
    "raises": (((0.02, 0.55, 0.4, 0.5), (0.02, 0.55, 0.85, 0.5), IDLE, BAD), 4, "RAISES", "leave the arm out", "MORE"),
    "underpowered": ((LEARNT, (0.02, 0.55, 0.55, 0.5), IDLE, BAD), 3, "UNDERPOWERED", "3 so far", "MORE"),
    "stuck": ((LEARNT, (0.02, 0.55, 0.02, 0.55), IDLE, BAD), 4, "WORKS", "half of this drop", "SCALE"),
    "near": ((LEARNT, (0.02, 0.55, 0.57, 0.5), IDLE, BAD), 4, "UNDERPOWERED", "no number of seeds up to 64", "MORE"),
    # No hack at all: still an interval, of the outcomes alone.
    "never": (((0.0, 0.55, 0.0, 0.6),) * 4, 3, "NO QUESTION", "0 points more [-9, 9]", "MORE"),
    "one-seed": ((LEARNT, GOOD, IDLE, BAD), 1, "UNDERPOWERED", "3 seeds or more (1 so far)", "MORE"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, planted: Planted) -> Callable[[str], Path]:
    """place(name) -> the folder of a world, with after.toml and out/; every world is written once."""
    places: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in places:
            sides, seeds, *_ = WORLDS[name]
            places[name] = tmp_path_factory.mktemp("here")
            names = ("gradient vanilla", "gradient projected", "gradient random", "kl vanilla")
            rates = dict(zip(names, sides, strict=False))
            planted(places[name], after(seeds), rates)
        return places[name]

    return make


@pytest.fixture(scope="module")
def screen(place: Callable[[str], Path]) -> Callable[..., str]:
    """screen(name, *more) -> what `probe analyze SPEC` prints of a world."""

    @cache
    def show(name: str, *more: str) -> str:
        text = io.StringIO()
        with contextlib.chdir(place(name)), contextlib.redirect_stdout(text):
            assert run(cli, ["analyze", *(more or ["after.toml"])]) == 0
        return text.getvalue()

    return show


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("near", "never", "one-seed", "stuck") else name
        for name in WORLDS
    ],
)
def test_each_world_gets_its_verdict(name: str, screen: Callable[..., str]) -> None:
    """The verdict, words of the screen, the decision that follows, and commands with settings that they take."""
    _, seeds, outcome, words, decision = WORLDS[name]
    text = screen(name)
    assert f"OUTCOME of projected (gradient), {seeds} seed{'s' * (seeds > 1)}: {outcome}\n" in text, text
    assert words in " ".join(text.split()), text
    # In the world no-effect not every run is there.
    word = "DECISION OF 24 RUNS: " if name == "no-effect" else "DECISION: "
    assert f"{word}{decision}." in text, text
    assert text.index("Does projection keep") < text.index("OUTCOME of") < text.index(word)
    commands = [line.strip() for line in text.splitlines() if line.startswith("    probe ")]
    assert commands, text
    for command in commands:
        check_command(command)
    others = [line for line in text.splitlines() if not line.startswith("    probe ")]
    assert max(map(len, others)) <= WIDTH


def test_every_verdict_is_in_the_table() -> None:
    assert {outcome for _, _, outcome, *_ in WORLDS.values()} == {*OF_ARM}


@pytest.mark.slow
def test_a_bench_is_a_table(tmp_path: Path, planted: Planted, probe) -> None:
    """More arms than are printed one by one: a line each, with both statements."""
    doses = {f"kl{i}": {**PENALTY, "objective.beta": i / 10} for i in (1, 2)}
    sides = {"gradient vanilla": LEARNT, "gradient projected": GOOD, "gradient random": COSTLY, "kl vanilla": IDLE}
    text = after(3, conditions={**GRADIENT_AND_KL, **doses})
    spec, out = planted(tmp_path, text, {**sides, "kl1 vanilla": IDLE})
    text, _ = probe("analyze", spec.path, root=out)
    for words in (
        r"projected \(gradient\) .* WORKS +falls 5\d \[\d+, \d+\] +kept, at most \d+\n",
        r"random \(gradient\) .* COSTS +falls 5\d \[\d+, \d+\] +lost 3\d, at most \d+\n",
        r"vanilla \(kl2\) +0 seeds .* UNDERPOWERED +- +-\n",
    ):
        assert re.search(words, text), text
    assert max(map(len, text.split("DECISION")[0].splitlines())) <= WIDTH


def test_a_treatment_that_never_applied_is_vacuous(tmp_path: Path, planted: Planted, probe) -> None:
    """A penalty whose records are those of vanilla to the byte: its criterion and its arm say so."""
    other = {"name": "kl", "role": "check", "arm": "vanilla", "condition": "kl", "versus_condition": "gradient"}
    rates = {"gradient vanilla": LEARNT, "gradient projected": GOOD, "kl vanilla": IDLE}
    spec, out = planted(tmp_path, after(3, criteria=[LOWERS, {**LOWERS, **other}]), rates)
    for seed in (0, 1, 2):
        vanilla, same = (out / "runs" / f"after-{name}-vanilla-seed{seed}" for name in ("gradient", "kl"))
        config = (same / "config.json").read_bytes()
        shutil.rmtree(same)
        shutil.copytree(vanilla, same)
        (same / "config.json").write_bytes(config)
        seal(same)
    text = " ".join(probe("analyze", spec.path, root=out)[0].split())
    assert "VACUOUS check kl: hack_final below 0" in text
    assert "both sides have the same records in seeds 0, 1, 2: nothing was compared" in text
    assert "OUTCOME of vanilla (kl), 3 seeds: VACUOUS" in text
    assert "what sets it apart never applied" in text
    assert "PASS primary lowers-hacking" in text


@pytest.mark.parametrize(
    ("p_of_d", "expected"),
    [
        (0.012, {"b": 0.05 / 4, "d": 0.05 / 3, "a": 0.05 / 2, "c": 0.05}),
        (0.02, {"b": 0.05 / 4, "d": 0.05 / 3, "a": 0.05 / 3, "c": 0.05 / 3}),
    ],
)
def test_step_down_is_holm(p_of_d: float, expected: dict[str, float]) -> None:
    """Each level is that of the arms that are still asked; the first that fails ends it."""
    assert step_down({"a": 0.02, "b": 0.001, "c": 0.3, "d": p_of_d}, 0.05) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["dominated", "costs"])
def test_what_is_printed_runs(name: str, screen: Callable[..., str], place: Callable[[str], Path], capsys) -> None:
    """The next training of the arm projected, by its --dry-run: settings of a run that is there, and some changed."""
    command = next(line.strip() for line in screen(name).splitlines() if line.startswith("    probe train"))
    with contextlib.chdir(place(name)):
        assert run(cli, [*shlex.split(command)[1:], "--dry-run"]) == 0, command
    capsys.readouterr()


def test_a_training_that_never_moved_is_a_training(screen: Callable[..., str]) -> None:
    """No group's rewards differ, so that nothing is stepped: its rates count in criteria, and the run is no replay."""
    found = orjson.loads(screen("stuck", "after.toml", "--json"))
    (criterion,) = found["verdict"]["findings"]
    assert (criterion["says"], criterion["n"]) == ("PASS", 4)
    assert "VERDICT: TRAINED" in screen("stuck", "after-gradient-projected-seed0")


def test_json_says_what_the_screen_says(screen: Callable[..., str]) -> None:
    """Levels: effects step down over all arms, costs share theirs in equal parts."""
    arms = {arm["about"]["name"]: arm for arm in orjson.loads(screen("costs", "after.toml", "--json"))["arms"]}
    levels = {name: arm["about"]["levels"] for name, arm in arms.items()}
    assert sorted(level["effect"] for level in levels.values()) == pytest.approx([0.05 / 3, 0.05 / 2, 0.05])
    assert {level["price"] for level in levels.values()} == {0.05 / 3}
    assert levels["random (gradient)"]["effect"] == 0.05, "two arms fall, and the last has what is left"
    arm = arms["projected (gradient)"]
    assert (arm["word"], arm["about"]["condition"], arm["about"]["seeds"]) == ("COSTS", "gradient", [0, 1, 2, 3])
    assert [row["says"] for row in arm["findings"]] == ["YES", "FALLS", "LOST", "YES"]
    effect = arm["findings"][1]
    assert effect["number"]["interval"]["low"] < effect["number"]["value"] < effect["number"]["interval"]["high"]
    assert (effect["n"], effect["unit"]) == (4, "seed")
    assert "all effects hold together with 95% (each at 95% to 98.33%)" in " ".join(screen("costs").split())


def test_runs_that_are_given_together_are_compared(place: Callable[[str], Path], screen: Callable[..., str]) -> None:
    """Without a spec: the first vanilla among the runs is what the others face, settings that differ are named."""
    runs = sorted(path.name for path in (place("costs") / "out" / "runs").iterdir())
    runs.sort(key=lambda name: "kl" in name)
    text = screen("costs", *runs)
    by_spec = screen("costs")
    for arm in ("projected", "random"):
        head = f"OUTCOME of {arm}, 4 seeds: "
        with_condition = head.replace(arm, f"{arm} (gradient)")
        assert text.partition(head)[2].split("\n")[0] == by_spec.partition(with_condition)[2].split("\n")[0] != ""
    assert "OUTCOME of vanilla (objective.reference=base, objective.beta=1.0), 4 seeds: " in " ".join(text.split())
    assert "VERDICT: TRAINED" not in text
    found = orjson.loads(screen("costs", *runs, "--json"))
    assert {arm["about"]["arm"]: arm["word"] for arm in found["arms"]}["projected"] == "COSTS"
    assert len(found["runs"]) == len(runs)
    assert "VERDICT: TRAINED" in screen("costs", *runs[:2]), "two seeds of one arm have nothing to be compared with"


@pytest.mark.slow
def test_a_rival_that_was_not_trained_is_asked_for(tmp_path: Path, planted: Planted, probe) -> None:
    """WORKS without any rival names the rival to train; with an unfinished one, to finish that."""
    alone = after(6, arms=["vanilla", "projected"], conditions={"gradient": {}})
    texts = []
    for name, text in (("alone", alone), ("unfinished", after(6))):
        (tmp_path / name).mkdir()
        spec, out = planted(tmp_path / name, text, {"gradient vanilla": LEARNT, "gradient projected": GOOD})
        texts.append(probe("analyze", spec.path, root=out)[0])
    alone, unfinished = texts
    assert "OUTCOME of projected, 6 seeds: WORKS" in alone
    assert "a rival that needs no pairs, a KL penalty of 1, on 6 seeds" in " ".join(alone.split())
    assert "OUTCOME of projected (gradient), 6 seeds: WORKS" in unfinished
    words = " ".join(unfinished.split())
    assert "random (gradient) is not known on 3 seeds" in words
    assert "finish and evaluate runs of random (gradient), 3 seeds or more" in words


@pytest.mark.slow
def test_vanilla_may_have_more_seeds(tmp_path: Path, planted: Planted, probe) -> None:
    """A condition with seeds of its own: planned, shown and judged by all of them."""
    plain = {"arms": ["vanilla"], "seeds": [0, 1, 2, 3, 4]}
    conditions = {"plain": plain, "gradient": {"arms": ["projected", "random"]}, "kl": PENALTY}
    lowers = LOWERS | {"condition": "gradient", "versus_condition": "plain"}
    rates = {"plain vanilla": LEARNT, "gradient projected": GOOD, "gradient random": IDLE, "kl vanilla": BAD}
    spec, out = planted(tmp_path, after(3, conditions=conditions, criteria=[lowers]), rates)
    assert "14 runs: 3 conditions" in probe("spec", "plan", spec.path, root=out)[0]
    found = orjson.loads(probe("analyze", spec.path, "--json", root=out)[0])
    projected = next(arm for arm in found["arms"] if arm["about"]["arm"] == "projected")
    assert projected["about"]["seeds"] == [0, 1, 2]
    fall = next(row["number"]["value"] for row in projected["findings"] if row["name"] == "effect")
    vanilla = evaluate_spec(spec, out).trained[0]
    assert len(vanilla.seeds) == 5
    assert fall == pytest.approx(vanilla.mean("hack") - projected["about"]["hack"])


def test_a_criterion_without_an_arm_is_of_vanilla_whatever_is_there(tmp_path: Path, planted: Planted) -> None:
    """Arms in another order, and a seed of vanilla that is not there: no number of another arm takes its place."""
    alone = criterion("alone", "smallest hack_final above 0.5", condition="gradient")
    text = after(3, arms=["projected", "vanilla"], criteria=[LOWERS, alone])
    spec, out = planted(tmp_path, text, {"gradient vanilla": LEARNT, "gradient projected": GOOD})
    shutil.rmtree(out / "runs" / "after-gradient-vanilla-seed2")
    found = evaluate_spec(spec, out).verdict.finding("alone")
    assert (found.says, found.n) == ("PASS", 2), found


GALLERY = ("works", "lowers", "dominated", "costs", "no-effect", "no-question", "underpowered")


def test_the_gallery_is_what_the_program_prints(screen: Callable[..., str], tmp_path: Path) -> None:
    """Of `probe analyze SPEC`: projected and the decision."""

    def block(name: str) -> str:
        lines = screen(name).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("OUTCOME of projected"))
        end = next(i for i, line in enumerate(lines) if i > start and line.startswith(("OUTCOME", "- ")))
        decision = next(line for line in lines if line.startswith("DECISION"))
        return "\n".join([*lines[start:end], decision]) + "\n"

    check_gallery("outcome", GALLERY, block, tmp_path)


def trained(condition: str, arm: str, values: dict[str, float] | None, *settings: str) -> TrainedArm:
    """One seed of an arm, whose rates are the values; None: a seed that is not finished."""
    config = configure("train", preset="fast", settings=[f'intervention.arms=["{arm}"]', *settings])
    remedy = config.remedy
    if values is None:
        return of_runs(condition, arm, [], remedy)
    shares = {name: {"p": (value, 8), ALL: (value, 8)} for name, value in values.items()}
    outcome = TrainingOutcome(evaluations=[], values=values, shares=shares, stopped=None)
    records = SimpleNamespace(path=Path("a run"), settings=config, training=config)
    run = SimpleNamespace(records=records, outcome=outcome)
    return of_runs(condition, arm, [run], remedy)


def changed(command: str, arm: TrainedArm) -> RunConfig:
    """The settings that a printed training has, from those of the arm that it repeats."""
    check_command(command)
    words = shlex.split(command)
    assert words[words.index("--config") + 1] == "a run/config.json"
    said = [following for word, following in pairwise(words) if word == "--set"]
    return configure("train", start=asdict(arm.settings), settings=said)


@pytest.mark.parametrize("rates", [{"hack_final": 0.0, "solve_final": 1.0}, None], ids=["finished", "unfinished"])
def test_what_acts_on_true_labels_or_needs_pairs_is_no_rival(rates: dict[str, float] | None) -> None:
    """A perfect monitor would dominate whatever there is, and nobody has one; a prompt can be had without pairs."""
    gate = trained("gate", "projected", rates)
    alone = [name for name in TRAITS if name not in ("finetune-accepted", "quarantine")]
    others = [trained(name, "vanilla", rates, f"remedy.name={name}") for name in alone]
    for monitor in ("similarity", "nll"):  # the first reads pairs
        others.append(trained(monitor, "vanilla", rates, "remedy.name=screening", f"remedy.monitor={monitor}"))
    others.append(trained("kl", "vanilla", rates, "objective.reference=base", "objective.beta=1.0"))
    trainings = Trainings(baseline=trained("", "vanilla", rates), treated=[gate, *others])
    without_pairs = ["inoculation", "recontextualization", "nll", "kl"]
    assert [rival.condition for rival in trainings.rivals(gate)] == without_pairs
    assert trainings.rivals(others[0]) == []
    steering = next(arm for arm in others if arm.condition == "preventative-steering")
    assert steering.needs_pairs
    assert [rival.condition for rival in trainings.rivals(steering)] == without_pairs


@pytest.mark.parametrize(
    ("settings", "half", "twice"),
    [
        (["remedy.name=preventative-steering", "remedy.coefficient=5.0"], "remedy.coefficient=2.5", "=10.0"),
        (["remedy.name=concept-ablation"], "remedy.components=2", "remedy.components=8"),
        (["remedy.name=penalty"], "remedy.strength=1.5", "remedy.strength=6.0"),
        (["objective.reference=base", "objective.beta=1.0"], "objective.beta=0.5", "objective.beta=2.0"),
    ],
)
def test_another_dose_is_of_what_was_done(settings: list[str], half: str, twice: str) -> None:
    """COSTS and NO EFFECT advise less and more of the remedy itself."""
    rates = {"hack_final": 0.0, "solve_final": 1.0}
    arm = trained("it", "vanilla", rates, *settings)
    trainings = Trainings(baseline=trained("", "vanilla", rates), treated=[arm])
    for outcome, expected in ((Outcome.COSTS, half), (Outcome.NO_EFFECT, twice)):
        command = next_step(outcome, [], arm, trainings).command
        assert expected in command
        changed(command, arm)


RATES = {"hack_start": 0.0, "solve_start": 0.5, "hack_final": 0.0, "solve_final": 1.0}
ABLATION = ("remedy.name=concept-ablation", "remedy.components=2")


@pytest.mark.parametrize(
    ("arm", "settings"),
    [("vanilla", ABLATION), ("projected", ("intervention.extraction.k=8", "intervention.projection.overshoot=1.5"))],
)
def test_what_is_added_to_a_rival_is_the_whole_arm(arm: str, settings: tuple[str, ...]) -> None:
    """DOMINATED: the rival's settings with the arm and the settings that set it apart from vanilla."""
    gate = trained("it", arm, RATES, *settings)
    penalty = trained("kl", "vanilla", RATES, "objective.reference=base", "objective.beta=1.0")
    trainings = Trainings(baseline=trained("", "vanilla", RATES), treated=[gate, penalty])
    advice = next_step(Outcome.DOMINATED, questions(gate, trainings), gate, trainings)
    assert f"see whether {arm} (it) adds anything" in advice.text
    combined = [f'intervention.arms=["{arm}"]', "objective.reference=base", "objective.beta=1.0", *settings]
    expected_settings = configure("train", preset="fast", settings=combined)
    assert replace(changed(advice.command, penalty), seed=0) == expected_settings


def test_an_outcome_is_of_the_mode_that_was_trained_on() -> None:
    """Where a loophole beside it was evaluated, the rate over both would be half of it."""
    both = {"hack_final": 0.4, "hack_final/run_tests": 0.75, "hack_final/sentinel": 0.05, "solve_final": 0.5}
    arm = trained("", "vanilla", both)
    assert arm.mean("hack", "final") == 0.75
    metric = arm.metric("hack", "final")
    assert arm.cells(metric, ["p"]) == arm.cells(metric, [])
    assert arm.mean("solve", "final") == 0.5, "one mode: over all, which is that mode"
