"""Specs: what is read is what the file says, what does not fit is refused in one line, edits are noticed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.experiments.checks import open_spec
from probe.experiments.prereg import decide, load_spec, preregistered, spec_status
from probe.settings.words import Verdict
from replay_pools.errors import InputError

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "spec").glob("*.toml"))
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
metric = "cos_in"
statistic = "lower95"
comparison = ">"
threshold = 0.05
unit = "prompt"
null = "N2"
role = "primary"
arm = "vanilla"
[[criteria]]
name = "near"
metric = "cos_in"
statistic = "interval90"
comparison = "inside"
threshold = [-0.05, 0.05]
unit = "prompt"
role = "check"
[[criteria]]
name = "gate"
metric = "frac_fired"
statistic = "mean"
comparison = ">"
threshold = 0.1
unit = "step"
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
    """Every table arrives with its types; options keep the names of the file."""
    spec = load_spec(write())
    assert (spec.name, spec.arms, spec.seeds, spec.primary.name) == ("small", ("vanilla", "random"), (0, 1), "aligned")
    assert spec.base.options == {"steps": 2, "per_pool": 4}
    assert spec.options(spec.conditions[1]) == {"steps": 2, "per_pool": 4, "advantage_clip": 2.0}
    assert spec.criteria[1].threshold == (-0.05, 0.05)
    assert spec.decisions[1].requires == {"near": ("PASS", "VACUOUS")}


REFUSED = [
    ('name = "plain"', 'name = "plain"\nsede = 1', "conditions.plain.sede: expected an option of probe replay"),
    ("steps = 2", "stepz = 2", "did you mean steps?"),
    ("steps = 2", "steps = 0", "conditions.plain: expected options of probe replay"),
    ("advantage_clip = 2.0", 'scale_rewards = "some"', "'some' is not one of"),
    ("advantage_clip = 2.0", "seed = 3", "no option that the sweep sets, found seed"),
    ('verb = "replay"', 'verb = "sample"', "base.verb: expected 'replay' or 'train', found 'sample'"),
    ('verb = "replay"', 'verb = "train"', "base.per_pool: expected an option of probe train"),
    ("seeds = [0, 1]", "seeds = [0, 0]", "seeds: expected different names, found 0 twice"),
    ("seeds = [0, 1]", "", "seeds: expected a value, found no such key"),
    ("seeds = [0, 1]", 'seeds = ["0"]', "seeds[0]: expected a whole number, found '0'"),
    ('arms = ["vanilla", "random"]', 'arms = ["vanila"]', "small.toml arms: expected some of vanilla"),
    ('question = "Does it run?"', "", "experiment.question: expected a value, found no such key"),
    ('question = "Does it run?"', 'question = "?"\nowner = "me"', "experiment.owner: expected one of the keys name"),
    ('name = "small"', 'name = "large"', "the file's name, 'small'"),
    ('role = "primary"', 'role = "check"', "exactly one of role primary, found none"),
    ('role = "check"', 'role = "primary"', "exactly one of role primary, found aligned, near"),
    ("threshold = 0.05", "threshold = [0, 1]", "criteria.aligned.threshold: expected [low, high] for inside"),
    ("threshold = [-0.05, 0.05]", "threshold = [0.05, -0.05]", "expected low < high"),
    ("threshold = 0.05", 'threshold = "small"', "criteria.aligned.threshold: expected a number"),
    ('statistic = "interval90"', 'statistic = "mean"', "inside for interval90, and only there"),
    ('arm = "vanilla"', 'arm = "placebo"', "criteria.aligned.arm: expected one of vanilla, random"),
    ('unit = "prompt"', 'unit = "token"', "criteria.aligned.unit: expected 'prompt', 'problem', 'seed'"),
    ('aligned = "PASS"', 'aligend = "PASS"', "decisions.GO.requires: expected criteria of this spec"),
    ('aligned = "PASS"', 'gate = "PASS"', "a mechanism criterion is an identity"),
    ('aligned = "PASS"', 'aligned = "YES"', "decisions.GO.requires.aligned: expected"),
    ('name = "MORE"', 'name = "MORE"\nrequires = { near = "PASS" }', "none in the last decision"),
    ('name = "capped"', 'name = "a/b"', "letters, digits and"),
    ("[experiment]", "[experiment", "expected TOML"),
    ("seeds = [0, 1]", "seeds = 0", "seeds: expected a list, found 0"),
    ("steps = 2", 'steps = "2"', "base.steps: expected a number, found a text, '2'"),
    (
        'metric = "cos_in"',
        'metric = "cos_inn"',
        "expected a metric of a replay, found 'cos_inn'; did you mean cos_in?",
    ),
    ('metric = "cos_in"', 'metric = "hack_final"', "a metric of a replay, found 'hack_final'"),
    ('unit = "prompt"', 'unit = "seed"', "criteria.aligned.unit: expected prompt or step, of cos_in in a replay"),
    (
        'null = "N2"',
        'null = "baselines"',
        "aligned.null: expected none or one of N1, N2, N3, N4 by prompt",
    ),
    ('metric = "cos_in"', 'metric = "grad_norm"', "aligned.null: expected none (there is no null of it), found 'N2'"),
    (
        'arm = "vanilla"',
        'versus_arm = "random"',
        "aligned.null: expected none of a difference",
    ),
    (
        'arm = "vanilla"',
        'arm = "random"',
        "aligned.arm: expected vanilla, of which alone the null N2",
    ),
    ('metric = "frac_fired"', 'metric = "auroc"', "criteria.gate.unit: expected prompt, of auroc in a replay"),
]


@pytest.mark.parametrize(("old", "new", "line"), REFUSED, ids=[line for _, _, line in REFUSED])
def test_what_does_not_fit_is_refused_in_one_line(write: Callable[..., Path], old: str, new: str, line: str) -> None:
    """The error names the file and the key, what was expected and what was found."""
    with pytest.raises(InputError) as error:
        open_spec(write(old, new))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_the_hash_is_of_what_the_file_says(write: Callable[..., Path]) -> None:
    """Comments, blanks and the order of keys do not change it; a threshold does."""
    spec = load_spec(write())
    assert load_spec(write("steps = 2\nper_pool = 4", "# so many\nper_pool=4\n\nsteps = 2")).sha256 == spec.sha256
    assert load_spec(write("threshold = 0.05", "threshold = 0.04")).sha256 != spec.sha256


def test_a_run_under_an_edited_spec_is_noticed(write: Callable[..., Path]) -> None:
    """The run's config keeps NAME@SHA256; an edit of the criteria after the run makes it `edited`."""
    spec = load_spec(write())

    def config(mark: str | None) -> dict[str, Any]:
        return {"verb": "replay", "replay": {"preregistered": mark}}

    frozen = config(preregistered(spec))
    assert spec_status(frozen, spec) == "frozen"
    assert spec_status(frozen, load_spec(write("threshold = 0.05", "threshold = 0.04"))) == "edited"
    assert spec_status(config("other@" + spec.sha256), spec) == "none"
    assert spec_status(config(None), spec) == "none"
    assert spec_status({"verb": "replay", "replay": {}}, spec) == "none", "a run older than specs"


VERDICTS: tuple[Verdict, ...] = ("PASS", "FAIL", "INCONCLUSIVE", "VACUOUS")


@given(aligned=st.sampled_from(VERDICTS), near=st.sampled_from(VERDICTS), gate=st.sampled_from(VERDICTS))
@settings(deadline=None)
def test_there_is_always_exactly_one_decision(
    tmp_path_factory: pytest.TempPathFactory, aligned: Verdict, near: Verdict, gate: Verdict
) -> None:
    """The first whose requirements hold, by the obvious chain; the mechanism row never matters."""
    path = tmp_path_factory.mktemp("spec") / "small.toml"
    path.write_text(SMALL)
    expected = "GO" if aligned == "PASS" else "SKIP" if near in ("PASS", "VACUOUS") else "MORE"
    assert decide(load_spec(path), {"aligned": aligned, "near": near, "gate": gate}).name == expected


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_specs_are_sound_and_explained(path: Path) -> None:
    """Every NAME.toml passes the parser of its verb and has a NAME.md with its log."""
    open_spec(path)
    text = path.with_suffix(".md").read_text()
    for heading in ("## Why", "## What would change our mind", "## Results"):
        assert heading in text, f"{path.stem}.md has no section {heading}"


def test_specs_ship() -> None:
    """The list above is not empty."""
    assert {"phase1", "phase2", "advantage-capping", "advantage-scaling"} <= {path.stem for path in SHIPPED}
