"""Specs: what is read is what the file says, what does not fit is refused by its key, edits are noticed."""

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import chain, product
from pathlib import Path

import pytest

from probe.experiments.jobs import run_jobs
from probe.experiments.register import spec_files
from probe.experiments.spec import WORDS, Spec
from probe.experiments.spec_file import load_spec
from probe.settings.loss import LossSettings
from probe.settings.verbs import read_config
from probe.settings.words import OF_CRITERION
from replay_pools.base.errors import InputError, InputErrors

ROOT = Path(__file__).parents[3]
# Without those that `probe spec plan RUN` wrote there, as the demo's commands do in a clone.
WRITTEN = "Written by `probe spec plan`"
SHIPPED = sorted(path for path in spec_files(ROOT / "spec") if WRITTEN not in path.read_text())
VERDICTS = OF_CRITERION
SMALL = """
arms = ["vanilla", "random"]
seeds = [0, 1]
[experiment]
name = "small"
question = "Does it run?"
hypotheses = ["It does."]
[settings]
verb = "replay"
steps = 2
source.per_pool = 4
[[conditions]]
name = "plain"
[[conditions]]
name = "capped"
settings.objective.advantage_clip = 2.0
[[criteria]]
name = "aligned"
estimate = "cos_in"
above = 0.05
role = "primary"
arm = "vanilla"
[[criteria]]
name = "near"
estimate = "cos_in, permuted pairs"
inside = [-0.05, 0.05]
role = "check"
[[criteria]]
name = "gate"
estimate = "largest frac_fired"
above = 0.1
role = "mechanism"
[[decisions]]
name = "GO"
then = "on"
[decisions.requires]
aligned = "PASS"
[[decisions]]
name = "SKIP"
[decisions.requires]
near = ["PASS", "VACUOUS"]
[[decisions]]
name = "MORE"
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(old, new) -> the small spec with one text replaced."""

    def make(old: str = "", new: str = "") -> Path:
        assert old in SMALL
        path = tmp_path / "small.toml"
        path.write_text(SMALL.replace(old, new, 1) if old else SMALL)
        return path

    return make


def test_a_spec_is_read_whole(write: Callable[..., Path]) -> None:
    """Every table arrives with its types; settings keep the keys of the file, and get the defaults of a run beside."""
    spec = load_spec(write())
    assert (spec.name, spec.arms, spec.seeds, spec.primary.name) == ("small", ("vanilla", "random"), (0, 1), "aligned")
    assert spec.settings == {"verb": "replay", "steps": 2, "source": {"per_pool": 4}}
    assert spec.conditions[1].settings == {"objective": {"advantage_clip": 2.0}}
    plain, capped = (condition.config for condition in spec.conditions)
    assert (plain.source.per_pool, plain.steps, plain.intervention.arms) == (4, 2, ("vanilla", "random"))
    assert capped == replace(plain, objective=LossSettings(advantage_clip=2.0))
    assert spec.criteria[1].inside == (-0.05, 0.05)
    assert spec.decisions[1].requires == {"near": ("PASS", "VACUOUS")}


def test_a_condition_may_have_seeds_of_its_own(write: Callable[..., Path], tmp_path: Path) -> None:
    """Those of the spec do not apply to it, and it shares no pass with conditions that have others."""
    spec = load_spec(write('name = "capped"', 'name = "capped"\nseeds = [1, 7]'))
    assert [(job.config.seed, *job.conditions) for job in run_jobs(spec, tmp_path)] == [
        (0, "plain"),
        (1, "plain"),
        (1, "capped"),
        (7, "capped"),
    ]


CLIP = "settings.objective.advantage_clip = 2.0"
REFUSED = [
    ("[experiment]", "[experiment", "small.toml"),
    ('name = "plain"', 'name = "plain"\nsede = 1', "plain.sede"),
    ("source.per_pool", "source.per_poll", "settings: source.per_poll"),
    (CLIP, 'settings.objective.scale_rewards = "some"', "objective.scale_rewards"),
    (CLIP, "settings.seed = 3", "conditions.capped"),
    ("steps = 2", 'intervention.arms = ["random"]', "settings"),
    ('verb = "replay"', "", "settings.verb"),
    ("[settings]", '[[pools]]\nname = "p"\nsettings.stepz = 2\n[settings]', "pools.p"),
    ("seeds = [0, 1]", "seeds = [0, 0]", "seeds"),
    ('name = "plain"', 'name = "plain"\nseeds = [3, 3]', "conditions.plain.seeds"),
    ('arms = ["vanilla", "random"]', 'arms = ["vanila"]', "arms"),
    ('name = "small"', 'name = "large"', "experiment.name"),
    ('role = "check"', 'role = "primary"', "criteria"),
    ("inside = [-0.05, 0.05]", "inside = [0.05, -0.05]", "criteria.near.inside"),
    ("above = 0.05", "", "criteria.aligned: expected one of above, below, inside, found none"),
    ('arm = "vanilla"', 'arm = "placebo"', "criteria.aligned.arm"),
    ('estimate = "cos_in, permuted pairs"', 'estimate = "pull"\narm = "random"', "criteria.near.arm"),
    ('estimate = "cos_in, permuted pairs"', 'estimate = "pull"\nversus_condition = "plain"', "criteria.near.estimate"),
    ('estimate = "cos_in"', 'estimate = "cos_inn"', "did you mean cos_in"),
    ('estimate = "cos_in"', 'estimate = "hack_final"', "criteria.aligned.estimate"),
    ('aligned = "PASS"', 'aligend = "PASS"', "decisions.GO.requires"),
    ('aligned = "PASS"', 'gate = "PASS"', "decisions.GO.requires"),
    ('aligned = "PASS"', 'verdict = "PASS"', "decisions.GO.requires.verdict"),
    ('aligned = "PASS"', 'outcome = "WORKS"', "decisions.GO.requires"),
    ('name = "MORE"', 'name = "MORE"\nrequires = { near = "PASS" }', "none in the last decision"),
    ('name = "MORE"', 'name = "MORE"\n[ceiling]', "ceiling"),
    ("steps = 2", 'optimizer.lr = 1e-3\nintervention.side = "x"', "settings"),
]


def test_what_does_not_fit_is_refused_by_its_key(write: Callable[..., Path]) -> None:
    for old, new, place in REFUSED:
        with pytest.raises(InputError) as error:
            load_spec(write(old, new))
        assert place in str(error.value), (new, str(error.value))


def test_all_faults_are_refused_at_once(write: Callable[..., Path]) -> None:
    path = write("above = 0.05", "above = 0.05\nbelow = 1.0")
    path.write_text(path.read_text().replace("frac_fired", "frac_fird").replace("inside = [-0.05", "inside = [0.5"))
    with pytest.raises(InputErrors) as error:
        load_spec(path)
    places = ["aligned", "near.inside", "gate.estimate"]
    assert [fault.where.partition("criteria.")[2] for fault in error.value.errors] == places


def test_trainings_are_compared_with_the_vanilla_that_the_primary_names(write: Callable[..., Path]) -> None:
    """A comparison within a condition is with the vanilla of that condition; without one, with the first's."""
    within = 'arm = "vanilla"', 'arm = "random"\nversus_arm = "vanilla"\ncondition = "capped"'
    path = write(*within)
    sides, baseline = load_spec(path).primary.sides, load_spec(path).baseline
    assert (sides[0], baseline) == (("capped", "random"), ("capped", "vanilla"))
    assert load_spec(write()).baseline == ("plain", "vanilla")
    assert load_spec(write('arm = "vanilla"', 'condition = "capped"')).primary.sides == (("capped", "vanilla"),)


def test_the_hash_is_of_what_the_file_says(write: Callable[..., Path]) -> None:
    """Comments, blanks and the order of keys do not change it; a threshold does."""
    spec = load_spec(write())
    assert (
        load_spec(write("steps = 2\nsource.per_pool = 4", "# so many\nsource.per_pool=4\n\nsteps = 2")).sha256
        == spec.sha256
    )
    assert load_spec(write("above = 0.05", "above = 0.04")).sha256 != spec.sha256


def test_there_is_always_exactly_one_decision(write: Callable[..., Path]) -> None:
    """The first whose requirements hold, by the obvious chain; the mechanism row never matters."""
    spec = load_spec(write())
    for aligned, near, gate in product(VERDICTS, repeat=3):
        expected = "GO" if aligned == "PASS" else "SKIP" if near in ("PASS", "VACUOUS") else "MORE"
        assert spec.decide({"aligned": aligned, "near": near, "gate": gate}).name == expected


@pytest.fixture(scope="module", params=SHIPPED, ids=lambda path: path.stem)
def shipped(request: pytest.FixtureRequest) -> Spec:
    return load_spec(request.param)


def test_shipped_specs_are_explained(shipped: Spec) -> None:
    """Every NAME.toml has a NAME.md with its log."""
    text = shipped.path.with_suffix(".md").read_text()
    for heading in ("## Why", "## How to run", "## Results"):
        assert heading in text, f"{shipped.name}.md has no section {heading}"


def test_every_shipped_decision_can_be_taken(shipped: Spec) -> None:
    """Over all words that its requirements can have: no decision is hidden behind an earlier one."""
    names = list(dict.fromkeys(name for entry in shipped.decisions for name in entry.requires))
    words = [WORDS.get(name, VERDICTS) for name in names]
    hidden = {entry.name for entry in shipped.decisions}
    draws = random.Random(0)  # in any order: that of the product changes the first requirements last
    some = (tuple(draws.choice(each) for each in words) for _ in range(10_000))
    for chosen in chain(some, product(*words)):
        hidden.discard(shipped.decide(dict(zip(names, chosen, strict=True))).name)
        if not hidden:
            return
    raise AssertionError(f"never taken: {', '.join(hidden)}")


def test_shipped_specs_ask_for_runs_that_read_back(shipped: Spec, tmp_path: Path) -> None:
    """Different names with the seed behind, one arm a training, and the objective of every condition."""
    jobs = run_jobs(shipped, tmp_path)
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        assert job.name.startswith(f"{shipped.name}-")
        assert job.name.endswith(f"seed{job.config.seed}")
        assert job.config.preregistered == shipped.mark
        assert job.config.intervention.arms == job.arms
        assert read_config(asdict(job.config), job.name) == job.config
        assert len(job.arms) == 1 or not job.config.trains
        for name in job.conditions:
            row = shipped.condition(name)
            assert job.config.objectives()["default" if shipped.trains else name] == row.config.objective
    assert {*shipped.cells} == {(name, arm) for job in jobs for name in job.conditions for arm in job.arms}
