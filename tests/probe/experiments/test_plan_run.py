"""`probe spec plan RUN`: a replay to the spec of the training that it is asked for."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from trainings import seal
from worlds import World, make_run

from extraction.pairs import builtin_pairs, write_pairs
from probe.analysis.analyze import Analysis, analyze
from probe.analysis.statistics.significance import mde
from probe.experiments.spec_file import load_spec
from probe.records.run import read_run
from probe.settings.presets import configure
from replay_pools.base.files import append_jsonl, write_json
from replay_pools.base.tables import flat


@pytest.fixture(scope="module")
def go(replay: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay of the same prompts for both policies, on few pairs, of which two are held out."""
    pairs, path = builtin_pairs("run_tests"), tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_pairs(path, [*pairs[:4], *pairs[-2:]])
    options = ("--match", "prompt", "--steps", "4", "--pairs", str(path), "--k", "2")
    return replay("go", "--replay-dirs", "teacher,base-hinted", "--arm", "vanilla,projected", *options)


@pytest.fixture(scope="module")
def analysed(go: Path) -> Analysis:
    """Its numbers with the word GO: the built-in pools lack common support, and a spec rests on neither."""
    found = analyze(read_run(go))
    vars(found)["verdict"] = replace(found.verdict, word="GO")
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, in which spec/ is written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def known(analysed: Analysis, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of every run are those of `go`, analysed once."""
    monkeypatch.setattr("probe.analysis.analyze.analyze", lambda run: analysed)


@pytest.fixture
def plan(probe) -> Callable[..., dict[str, Any]]:
    """plan(*words, root=out) -> what `probe spec plan --json` prints."""
    return lambda *words, **root: json.loads(probe("spec", "plan", *words, "--json", **root)[0])


@pytest.mark.usefixtures("known")
def test_a_go_becomes_a_spec_that_loads_and_plans(go: Path, here: Path, plan) -> None:
    found = plan("go")
    path = here / "spec" / "go-training.toml"
    assert found["written"] == "spec/go-training.toml"
    assert found["vacuous"] == []
    spec = load_spec(path)
    assert spec.arms == ("vanilla", "projected", "permuted-dosed", "scaled")
    assert [row.name for row in spec.conditions] == ["gradient", "kl"]
    # The seeds are the fewest that see the effect which is assumed.
    n = len(spec.seeds)
    assert mde(0.15, n) <= 0.3 < mde(0.15, n - 1)
    assert found["runs"] == n * 5
    assert any(f"[budget] {n} seeds can see the expected effect of 0.3" in note for note in found["notes"])
    assert spec.ceiling is not None
    assert (spec.primary.arm, spec.primary.versus_arm) == ("projected", "vanilla")
    config = spec.condition("gradient").config
    assert config.rollouts.teacher.pool == "teacher"
    assert config.intervention.extraction == read_run(go).settings.intervention.extraction


@pytest.mark.usefixtures("known")
def test_a_training_with_steps_as_large_prices_it(go: Path, here: Path, plan) -> None:
    """In hours: 2 s a step and 3 s before them; no money before the spec names a price. Others do not count."""
    out, text = here / "out", "no hours and no money for gradient, kl: "
    assert any(text in note for note in plan(go, root=out)["notes"])
    for name, options in (("smaller", {"rollouts.group": 4}), ("halfway", {})):
        config = configure("train", preset="fast", options=options)
        write_json(out / "runs" / name / "config.json", {"settings": asdict(config)})
        lines = [{"start": {"load": {"seconds": 3.0, "cache": None}}}, *({"step": i, "seconds": 2.0} for i in range(4))]
        for line in lines:
            append_jsonl(out / "runs" / name / "timings.jsonl", line)
        found = plan(go, root=out)["prices"]
        assert bool(found) == (name == "halfway")
    (whole,) = (price for price in found if price["what"] == "this spec")
    assert whole["hours"] == pytest.approx(whole["runs"] * (3 + 64 * 2) / 3600)
    assert whole["money"] is None
    assert whole["source"].startswith("measured in halfway: ")


@pytest.fixture
def copy(go: Path, tmp_path: Path) -> Callable[..., str]:
    """copy(name, change) -> a run of that name, with its config changed and the numbers of the first one."""

    def make(name: str, change: Callable[[dict], object]) -> str:
        directory = Path(shutil.copytree(go, tmp_path / "runs" / name))
        config = json.loads((directory / "config.json").read_text())
        change(config)
        (directory / "config.json").write_text(json.dumps(config))
        seal(directory)
        return str(directory)

    return make


@pytest.mark.usefixtures("known")
def test_pairs_that_have_changed_are_refused(copy: Callable[..., str], refused) -> None:
    other = copy("other", lambda config: config["directions"].update(pairs_sha256="0" * 64))
    assert "pairs.jsonl: expected the directions that" in refused("spec", "plan", other)
    assert not Path("spec").exists()


@pytest.mark.usefixtures("known")
def test_nothing_is_overwritten(go: Path, here: Path, plan, refused) -> None:
    """The same plan again is no change; another file under the name is refused and left as it is."""
    path = Path(plan(go)["written"])
    text = path.read_text()
    plan(go)
    assert path.read_text() == text
    path.write_text(text + "# mine\n")
    assert f"{path}: expected no file" in refused("spec", "plan", go)
    assert path.read_text() == text + "# mine\n"


LOSS = {"scale_rewards": "group", "reference": "base", "beta": 0.5}
PROJECTION = {"side": "two_sided", "overshoot": 1.5}
# {run: (its changes, what its training then has; `kl`: of the rival condition)}
CHANGED: dict[str, tuple[Callable[[dict], object], dict[str, Any]]] = {
    "loss": (
        lambda config: config["settings"]["objective"].update(LOSS),
        # The rival is stronger than the run's own penalty.
        {**{f"objective.{key}": value for key, value in LOSS.items()}, "kl": 5.0},
    ),
    "projection": (
        lambda config: config["settings"]["intervention"]["projection"].update(PROJECTION),
        {f"intervention.projection.{key}": value for key, value in PROJECTION.items()},
    ),
    "no-pool-of-another-policy": (
        lambda config: config.update(pools=[config["pools"][1]]),
        {"rollouts.teacher": None, "kl": 1.0},
    ),
    # A pool that the policy sampled itself is no teacher's.
    "an-adapter": (
        lambda config: (config["settings"]["model"].update(adapter="teacher"), config["pools"].pop(1)),
        {"model.adapter": "teacher", "rollouts.teacher": None},
    ),
    # By the preset of large models, without the number of problems of another environment, with the replay's objective.
    "another-model": (
        lambda config: config.update(model="someone/model"),
        {"model.name": "someone/model", "steps": 200, "rollouts.env": "minicode", "rollouts.num_problems": None}
        | {"rollouts.teacher.pool": "teacher", "objective.reference": None},
    ),
}


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", CHANGED)
def test_what_the_run_was_goes_into_its_spec(name: str, copy: Callable[..., str], plan) -> None:
    change, expected = CHANGED[name]
    plan(copy(name, change))
    spec = load_spec(Path(f"spec/{name}-training.toml"))
    found = flat(asdict(spec.condition("gradient").config)) | {"kl": spec.condition("kl").config.objective.beta}
    assert {key: found[key] for key in expected} == expected


def test_another_verdict_is_planned_with_a_caution(go: Path, here: Path, probe) -> None:
    """By the real command on a real replay: the word, what it means and the next step; then the plan and its file."""
    printed, errors = probe("spec", "plan", go)
    verdict = analyze(read_run(go)).verdict
    assert verdict.word != "GO"
    assert f"caution: {verdict.plain} First: {verdict.next.in_line}" in errors
    assert "Smallest effect seen" in printed
    assert f"whose verdict is {verdict.word}: " in (here / "spec" / "go-training.toml").read_text()


REFUSED = {
    "found BROKEN: ": World(twin_arms=True, num_steps=12),
    "found TRAINED: ": World(trains=True, arms=("vanilla",), num_steps=4),
    # A GO there has no training with vanilla; the command is the one that the analysis proposes.
    "found one in the basis lora; next: probe ": World(arms=("projected-lora",), num_steps=12),
}


@pytest.mark.parametrize("found", REFUSED)
def test_what_cannot_be_planned_is_refused_with_its_next_step(found: str, here: Path, refused) -> None:
    make_run(here / "out" / "runs" / "run", REFUSED[found])
    error = refused("spec", "plan", "run", root="out")
    assert "out/runs/run: expected a replay that can be read, in the basis svd, " in error
    assert found in error
    assert "next: probe " in error
    assert not Path("spec").exists()
