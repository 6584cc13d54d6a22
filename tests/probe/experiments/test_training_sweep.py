"""A miniature training sweep, from its commands to a decision: two arms, and their numbers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from in_process import InProcess
from scripts import ROOT, load_script
from specs import LOWERS, spec_text

from extraction.pairs import builtin_pairs, write_pairs
from probe.analysis.analyze import analyze
from probe.analysis.measures import STEPS, by_seed, names
from probe.analysis.training_runs import RATES
from probe.analysis.verdict.trained_arms import TrainedArm
from probe.experiments.judge import evaluate_spec
from probe.experiments.spec import Spec
from probe.experiments.spec_file import load_spec
from probe.experiments.sweep import has_failed, sweep
from probe.records.run import EVALUATIONS_DIR, Run, read_evals, read_run
from replay_pools.base.files import read_json, read_sealed, sha256, write_json, write_sealed
from replay_pools.pool import open_pool

ladder = load_script(ROOT / "spec" / "tools" / "ladder.py")
pytestmark = pytest.mark.slow  # the dearest sweep: planted trainings hold the judge in test_phase3
SETTINGS = {
    "steps": 2, "intervention.extraction.k": 2, "rollouts.sampler.max_new_tokens": 48, "optimizer.lr": 0.05,
    "optimizer.warmup_steps": 0, "objective.reference": "ema", "control.ema_decay": 0.5, "evaluation.num_problems": 4,
    "evaluation.modes": ["run_tests", "sentinel"], "evaluation.every": 9,
}  # fmt: skip


STOPPED = "mini-base-projected-seed3"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, out: Path) -> tuple[Spec, Path]:
    """(the spec, its out/ with two finished runs)."""
    place = tmp_path_factory.mktemp("mini")
    pairs = builtin_pairs("run_tests")
    write_pairs(place / "pairs.jsonl", [*pairs[:3], *[pair for pair in pairs if pair.held_out][:2]])
    arms, settings = ["vanilla", "projected"], {"verb": "train", "preset": "smoke", **SETTINGS}
    settings["intervention.extraction.pairs"] = str(place / "pairs.jsonl")
    text = spec_text("mini", settings, arms=arms, seeds=[3], criteria=[LOWERS])
    (place / "mini.toml").write_text(text)
    spec = load_spec(place / "mini.toml")
    own = place / "out"
    own.mkdir()
    (own / "cache").symlink_to(out / "cache")
    assert not has_failed(sweep(spec, own, engine=InProcess()))
    return spec, own


def one_run(own: Path, arm: str) -> Run:
    return read_run(own / "runs" / f"mini-base-{arm}-seed3")


def test_outcomes_are_those_of_the_evaluations(swept: tuple[Spec, Path]) -> None:
    """Start, final and gain of the deployed weights; a problem's own rates, per setting, from the graded rollouts."""
    _, own = swept
    record = one_run(own, "vanilla")
    analysis = analyze(record)
    arm, outcome = TrainedArm(condition="", arm="vanilla", runs=[analysis]), analysis.outcome
    assert outcome is not None
    values = {**outcome.values, "cos_update": by_seed("cos_update", arm)["3"]}
    first, last = (evaluation for evaluation in read_evals(record.path))
    assert values["hack_start"] == first["rates"]["all"]["hack"]["rate"]
    assert values["solve_final"] == last["rates"]["all"]["solve"]["rate"]
    assert values["hack_final/sentinel"] == last["rates"]["sentinel"]["hack"]["rate"]
    assert values["solve_gain"] == pytest.approx(values["solve_final"] - values["solve_start"])
    assert values["margin_final"] == last["frozen"]["margin"]
    _, checkpoints = ladder.read_players([record.path], [], bots=False)
    (attempts,) = checkpoints.values()
    base = ladder.Sitting(record.path / EVALUATIONS_DIR / "step_000000").attempts
    assert values["elo_gap"] == pytest.approx(ladder.rating(ladder.matches(attempts, base, "solve"))["elo"])
    assert values["cos_update"] == pytest.approx(np.mean([step.cos_update for step in record.steps]))
    pool = open_pool(record.path / EVALUATIONS_DIR / "step_000002" / "sentinel")
    solved = {rollout.problem_id: float(rollout.gt_pass) for group in pool.steps for rollout in group}
    by_problem = dict(outcome.shares["solve_final/sentinel"])
    assert by_problem.pop("all")[0] == last["rates"]["sentinel"]["solve"]["rate"]
    assert {problem: share for problem, (share, _) in by_problem.items()} == solved


def test_a_training_has_the_numbers_that_a_criterion_may_name(swept: tuple[Spec, Path]) -> None:
    """Every name gives a number for a run, without further settings."""
    _, own = swept
    arm = TrainedArm(condition="", arm="projected", runs=[analyze(one_run(own, "projected"))])
    elsewhere = ("ratio/", "hack_difference", "pure_", "kl/", "adv_cap", "solve_teacher", "largest", "smallest", STEPS)
    settings = ("run_tests", "sentinel")  # of the evaluations
    missing = set()
    for name in names(trains=True):
        rate, _, setting = name.partition("/")
        if not name.startswith(elsewhere) and (rate.partition("_")[0] not in RATES or setting in ("", *settings)):
            missing |= {name} if not by_seed(name, arm) else set()
    assert not missing
    assert by_seed("kl/final", arm)
    assert by_seed("kl/share_of_base", arm)


def test_a_training_run_is_not_read_as_a_replay(swept: tuple[Spec, Path]) -> None:
    """Prompts are problems, not steps; grader and template come from its own pool; the unit is the run; no p at all."""
    _, own = swept
    record = one_run(own, "vanilla")
    alone = analyze(record)
    trained_on = {rollout.problem_id for group in open_pool(record.path / "rollouts").steps for rollout in group}
    assert alone.size["num_prompts"] == len(trained_on) == 4
    parts = {part.name: part for part in alone.validity}
    assert parts["grader canaries"].says == "HOLDS"
    assert parts["template tails"].says == "HOLDS"
    assert parts["arms at the first step"].says == "NOT SEEN"
    assert all(row.p is None and row.interval is None for row in alone.of("contrasts"))
    assert alone.verdict.word == "TRAINED"
    beside = one_run(own, "projected")
    together = analyze(record, others=[record, beside])
    assert next(part for part in together.validity if part.name == "arms at the first step").says == "HOLDS"


def test_a_stop_and_an_edited_preset_are_noticed(swept: tuple[Spec, Path], tmp_path: Path) -> None:
    """The hash of a spec is of what the spec says, and a preset is a file of its own."""
    spec, own = swept
    shutil.copytree(own, tmp_path / "out", symlinks=True)
    directory = tmp_path / "out" / "runs" / STOPPED
    config, manifest = read_json(directory / "config.json"), read_sealed(directory / "manifest.json")
    config["settings"]["optimizer"]["lr"] = 0.06
    del config["settings"]["model"]["targets"]  # as before there was this setting: the default is meant
    write_json(directory / "config.json", config)
    manifest["files"]["config.json"] = sha256((directory / "config.json").read_bytes())
    write_sealed(directory / "manifest.json", manifest | {"stopped": "kl 12.5 above 10 for 3 steps"})
    cautions = [text for text in evaluate_spec(spec, tmp_path / "out").verdict.caveats if not text.startswith("not ")]
    assert sorted(text.split(":")[0] for text in cautions) == ["MIXED", "STOPPED"]
    assert any("base differ in optimizer.lr:" in text for text in cautions)
    assert any(f"{STOPPED}, by a tripwire (kl 12.5 above 10 for 3 steps)" in text for text in cautions)
