"""Specs: what is read is what the file says, what does not fit is refused in one line, edits are noticed."""

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.analysis.verdict import decision
from probe.experiments.planning.checks import open_spec
from probe.experiments.spec.jobs import block, pool_jobs
from probe.experiments.spec.prereg import decide, load_spec, preregistered, spec_status
from probe.experiments.spec.types import WORDS
from probe.settings.loss import LossSettings
from probe.settings.remedy import RemedyConfig
from probe.settings.rollouts import RolloutConfig, SourceConfig, TeacherConfig
from probe.settings.run import GenerateConfig, ReplayConfig, TrainConfig, read_config
from probe.settings.training import InterventionConfig, ModelConfig, OptimizerConfig
from probe.settings.words import Verdict
from replay_pools.errors import InputError
from replay_pools.rollout import Sampler
from replay_pools.storage.tables import flat

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
    """Every table arrives with its types; settings keep the keys of the file, and get the defaults of a run beside."""
    spec = load_spec(write())
    assert (spec.name, spec.arms, spec.seeds, spec.primary.name) == ("small", ("vanilla", "random"), (0, 1), "aligned")
    assert spec.settings == {"verb": "replay", "steps": 2, "source": {"per_pool": 4}}
    assert spec.conditions[1].settings == {"objective": {"advantage_clip": 2.0}}
    plain, capped = spec.resolved.values()
    assert plain.given == {"steps", "source.per_pool"}
    assert capped.given == {"steps", "source.per_pool", "objective.advantage_clip"}
    expected = ReplayConfig(
        source=SourceConfig(per_pool=4),
        intervention=InterventionConfig(arms=("vanilla", "random")),
        optimizer=OptimizerConfig(schedule="constant", max_grad_norm=None),
        steps=2,
    )
    assert plain.config == expected
    assert capped.config == replace(expected, objective=LossSettings(advantage_clip=2.0))
    assert spec.criteria[1].threshold == (-0.05, 0.05)
    assert spec.decisions[1].requires == {"near": ("PASS", "VACUOUS")}


CLIP = "settings.objective.advantage_clip = 2.0"
SWEEPS = "expected no key that the sweep sets (arms, seeds, conditions, verb), found"
REFUSED = [
    (
        'name = "plain"',
        'name = "plain"\nsede = 1',
        "plain.sede: expected one of the keys name, settings, arms",
    ),
    ("steps = 2", "stepz = 2", "settings: stepz: expected one of the keys verb, model, source,"),
    ("steps = 2", "stepz = 2", "found an unknown key; did you mean steps?"),
    (
        "source.per_pool",
        "source.per_poll",
        "settings: source.per_poll: expected one of the keys replay_dirs,",
    ),
    ("source.per_pool", "source.per_poll", "found an unknown key; did you mean source.per_pool?"),
    ("source.per_pool", "per_pool", "settings: per_pool: expected one of the keys verb, model"),
    ("source.per_pool", "per_pool", "found an unknown key; did you mean source.per_pool?"),
    (
        CLIP,
        "settings.objective.advantage_clp = 2",
        "capped: objective.advantage_clp: expected one of the keys loss",
    ),
    (CLIP, "settings.objective.advantage_clp = 2", "found an unknown key; did you mean objective.advantage_clip?"),
    (CLIP, "settings.advantage_clip = 2.0", "conditions.capped: advantage_clip: expected one of the keys verb, model"),
    (CLIP, "settings.advantage_clip = 2.0", "found an unknown key; did you mean objective.advantage_clip?"),
    (CLIP, "advantage_clip = 2.0", "conditions.capped.advantage_clip: expected one of the keys name, settings, arms"),
    ("steps = 2", "steps = 0", "settings: steps: expected at least 1, found 0"),
    (CLIP, 'settings.objective.scale_rewards = "some"', "objective.scale_rewards: expected 'none', 'group' or 'batch'"),
    (CLIP, "settings.seed = 3", f"small.toml conditions.capped: {SWEEPS} seed"),
    (CLIP, 'settings.verb = "replay"', f"small.toml conditions.capped: {SWEEPS} verb"),
    (CLIP, 'settings.intervention.arms = ["random"]', f"small.toml conditions.capped: {SWEEPS} intervention.arms"),
    (CLIP, 'settings.conditions = [{ name = "a" }]', f"small.toml conditions.capped: {SWEEPS} conditions"),
    (CLIP, 'settings.preregistered = "small@0"', f"small.toml conditions.capped: {SWEEPS} preregistered"),
    ("steps = 2", "seed = 3", f"small.toml settings: {SWEEPS} seed"),
    ("steps = 2", 'intervention.arms = ["random"]', f"small.toml settings: {SWEEPS} intervention.arms"),
    ("steps = 2", 'conditions = [{ name = "a" }]', f"small.toml settings: {SWEEPS} conditions"),
    ("steps = 2", 'preregistered = "small@0"', f"small.toml settings: {SWEEPS} preregistered"),
    ('verb = "replay"', 'verb = "sample"', "settings.verb: expected replay or train, found 'sample'"),
    ('verb = "replay"', "", "settings.verb: expected replay or train, found none"),
    ('verb = "replay"', 'verb = "train"', "settings: source: expected the tables of train: rollouts, evaluation"),
    ("[settings]", '[[pools]]\nname = "p"\nsettings.stepz = 2\n[settings]', "pools.p: stepz: expected one of the keys"),
    ("[settings]", '[[pools]]\nname = "p"\nsettings.verb = "train"\n[settings]', "pools.p: expected no key that the"),
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
    ('aligned = "PASS"', 'verdict = "PASS"', "decisions.GO.requires.verdict: expected some of BROKEN, SKIP,"),
    ('aligned = "PASS"', 'R1 = "PASS"', "decisions.GO.requires: expected criteria of this spec, or verdict or outcome"),
    ('aligned = "PASS"', 'outcome = "WORKS"', "expected no outcome: that needs a primary on an arm of probe train"),
    ('name = "MORE"', 'name = "MORE"\nrequires = { near = "PASS" }', "none in the last decision"),
    ('name = "capped"', 'name = "a/b"', "letters, digits and"),
    ("[experiment]", "[experiment", "expected TOML"),
    ("seeds = [0, 1]", "seeds = 0", "seeds: expected a list, found 0"),
    ("steps = 2", 'steps = "2"', "settings: steps: expected a whole number, found '2'"),
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
        "aligned.null: expected none or one of N1, N2, N3 by prompt",
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
    (
        'metric = "frac_fired"\nstatistic = "mean"\ncomparison = ">"\nthreshold = 0.1\nunit = "step"',
        'metric = "pull"\nstatistic = "p"\ncomparison = "<"\nthreshold = 0.05\nunit = "prompt"',
        "criteria.gate.statistic: expected mean, value, lower95, upper95, n, of pull",
    ),
    (
        f'{CLIP}\n[[criteria]]\nname = "aligned"',
        f'{CLIP}\narms = ["random"]\n[[criteria]]\nname = "aligned"\ncondition = "capped"',
        "criteria.aligned.arm: expected an arm that capped runs (random), found 'vanilla'",
    ),
    (
        f'{CLIP}\n[[criteria]]\nname = "aligned"',
        f'{CLIP}\narms = ["random"]\n[[criteria]]\nname = "aligned"\nversus_condition = "capped"',
        "criteria.aligned.versus_arm: expected an arm that capped runs (random), found 'vanilla'",
    ),
]


@pytest.mark.parametrize(("old", "new", "line"), REFUSED, ids=[f"{new}: {line}" for _, new, line in REFUSED])
def test_what_does_not_fit_is_refused_in_one_line(write: Callable[..., Path], old: str, new: str, line: str) -> None:
    """The error names the file and the key, what was expected and what was found."""
    with pytest.raises(InputError) as error:
        open_spec(write(old, new))
    assert line.split(": expected")[0] in str(error.value)


def test_looks_are_for_a_primary_that_they_can_separate(write: Callable[..., Path]) -> None:
    """Shown to be equivalent is never shown to differ: a rule that stops on a difference does not fit."""
    path = write()
    text = path.read_text() + '[stop]\nspending = "obrien-fleming"\nalpha = 0.05\n'
    path.write_text(text)
    assert load_spec(path).stop is not None
    roles = text.replace('role = "primary"', "role = ?").replace('role = "check"', 'role = "primary"')
    path.write_text(roles.replace("role = ?", 'role = "check"'))
    with pytest.raises(InputError, match="stop: expected a primary of statistic mean, .*found interval90"):
        load_spec(path)


def test_trainings_are_compared_with_the_vanilla_that_the_primary_names(write: Callable[..., Path]) -> None:
    """A comparison within a condition is with the vanilla of that condition; without one, with the first's."""
    within = 'arm = "vanilla"', 'arm = "random"\nversus_arm = "vanilla"\ncondition = "capped"'
    path = write(*within)
    path.write_text(path.read_text().replace('null = "N2"\n', ""))
    assert (load_spec(path).judged, load_spec(path).baseline) == (("capped", "random"), ("capped", "vanilla"))
    assert load_spec(write()).baseline == ("plain", "vanilla")
    assert load_spec(write('arm = "vanilla"', 'condition = "capped"')).judged == ("capped", "vanilla")


def test_the_hash_is_of_what_the_file_says(write: Callable[..., Path]) -> None:
    """Comments, blanks and the order of keys do not change it; a threshold does."""
    spec = load_spec(write())
    assert (
        load_spec(write("steps = 2\nsource.per_pool = 4", "# so many\nsource.per_pool=4\n\nsteps = 2")).sha256
        == spec.sha256
    )
    assert load_spec(write("threshold = 0.05", "threshold = 0.04")).sha256 != spec.sha256


def test_a_run_under_an_edited_spec_is_noticed(write: Callable[..., Path]) -> None:
    """The run's config keeps NAME@SHA256; an edit of the criteria after the run makes it `edited`."""
    spec = load_spec(write())

    def config(mark: str | None) -> dict[str, Any]:
        return {"settings": {"verb": "replay", "preregistered": mark}}

    frozen = config(preregistered(spec))
    assert spec_status(frozen, spec) == "frozen"
    assert spec_status(frozen, load_spec(write("threshold = 0.05", "threshold = 0.04"))) == "edited"
    assert spec_status(config("other@" + spec.sha256), spec) == "none"
    assert spec_status(config(None), spec) == "none"
    assert spec_status({"settings": {"verb": "replay"}}, spec) == "none", "a run older than specs"


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
    """Every NAME.toml is settings that its verb takes and has a NAME.md with its log."""
    open_spec(path)
    text = path.with_suffix(".md").read_text()
    for heading in ("## Why", "## How to run", "## Results"):
        assert heading in text, f"{path.stem}.md has no section {heading}"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_decision_can_be_taken(path: Path) -> None:
    """Over all words that its requirements can have: no decision is hidden behind an earlier one."""
    spec = load_spec(path)
    names = list(dict.fromkeys(name for entry in spec.decisions for name in entry.requires))
    words = [WORDS.get(name, VERDICTS) for name in names]
    hidden = {entry.name for entry in spec.decisions}
    draws = random.Random(0)  # in any order: that of the product changes the first requirements last
    some = (tuple(draws.choice(each) for each in words) for _ in range(10_000))
    for chosen in chain(some, product(*words)):
        hidden.discard(decide(spec, dict(zip(names, chosen, strict=True))).name)
        if not hidden:
            return
    raise AssertionError(f"never taken: {', '.join(hidden)}")


def test_a_contradicted_hypothesis_decides() -> None:
    """Phase 1 as its data came out: everything passes but H2, whose opposite is shown."""
    spec = load_spec(ROOT / "spec" / "phase1.toml")
    verdicts = {criterion.name: "PASS" for criterion in spec.criteria} | {"H2-pure-hacks": "FAIL"}
    assert decide(spec, verdicts).name == "READS THE TEACHER, NOT THE HACK"
    assert decide(spec, verdicts | {"H2-pure-hacks": "INCONCLUSIVE"}).name == "BUY MORE PROMPTS"


def test_the_words_of_a_verdict_are_those_of_the_program() -> None:
    assert {*WORDS["verdict"], "TRAINED"} == {*get_args(decision.Verdict)}


# Of every seed, in the order of the sweep.
TREATMENTS = {
    **{"k1": "projected", "k2": "projected", "k4": "projected", "k8": "projected", "mean": "projected"},
    **{"unseen-simple": "projected", "unseen-copying": "projected"},
    **{"first-half": "projected", "second-half": "projected"},
    **{"sentinel": "projected", "stdout-marker": "projected", "placebo": "projected", "style": "projected"},
    **{"haar": "random", "permuted": "permuted", "haar-dosed": "random-dosed", "permuted-dosed": "permuted-dosed"},
}
CHOOSE = ["k1", "k4", "unseen-simple", "first-half", "stdout-marker", "placebo", "haar", "permuted-dosed"]
CONFIRM = ["k2", "k8", "mean", "unseen-copying", "second-half", "sentinel", "style", "permuted", "haar-dosed"]
RUNS = {
    "advantage-capping": ["C1-uncapped", "M1-maxrl"],
    "advantage-scaling": [""],
    "foretell": [
        "none-vanilla",
        *(f"{name}-{arm}" for name, arm in TREATMENTS.items()),
    ],
    "grpo-grouping": [f"{name}-projected-lora" for name in ("A-control", "B-strata", "C-surprise", "D-both")],
    "kl-control": ["none-vanilla", "fixed-vanilla", "warm-up-vanilla", "adaptive-vanilla"],
    "mlp-stability": [
        f"{name}-projected-lora" for name in ("N-neither", "A-kl", "B-clip", "C-clip-kl", "D-clip-strong-kl")
    ],
    "phase1": ["base"],
    "phase2": ["mixed", "same-prompt", "crossed"],
    "phase3": [
        *(f"gradient-{arm}" for arm in ("vanilla", "projected", "permuted-dosed")),
        *(f"{name}-vanilla" for name in ("kl", "inoculation", "closed")),
    ],
    "phase1-smollm2": ["all-flavours", "unseen-flavours"],
    "phase2-smollm2": ["same-prompt", "mixed", "same-prompt-lora"],
    "phase2-smollm2-half": ["same-prompt", "same-prompt-lora"],
    "phase3-smollm2": [*(f"plain-{arm}" for arm in ("vanilla", "projected", "permuted-dosed")), "kl-vanilla"],
    "phase3-organism": [
        "gradient-vanilla",
        "gradient-projected",
        "gradient-random",
        "update-projected",
        "refreshed-projected",
    ],
    "phase3-replication": ["gradient-vanilla", "gradient-projected", "gradient-random", "kl-vanilla"],
    "reference-bypass": ["ema-vanilla", "bypassed-vanilla"],
    "hard-base": [
        *(f"{name}-vanilla" for name in ("plain", "closed")),
        *("k8-projected", "k8-permuted-dosed", "k16-projected"),
        *(f"kl-{beta}-vanilla" for beta in (0.3, 1.0, 3.0)),
    ],
    "second-organism": [
        *(f"{name}-vanilla" for name in ("plain", "closed")),
        *("k8-projected", "k8-permuted-dosed"),
        *(f"kl-{beta}-vanilla" for beta in (0.3, 1.0)),
    ],
    "remedies-gate": [
        *(f"plain-{arm}" for arm in ("vanilla", "projected", "route", "permuted-dosed")),
        "closed-vanilla",
        *(f"{name}-projected" for name in ("k8", "overshoot-0.5", "overshoot-2", "two-sided")),
        *(f"kl-{beta}-vanilla" for beta in ("0.03", "0.1", "0.3", "1.0")),
    ],
    "remedies-loss": [
        *(f"{name}-vanilla" for name in ("plain", "closed", "entropy", "early-stop")),
        *(f"{name}-vanilla" for name in ("cap-2", "sepa-cap-2", "scaled", "scaled-eps", "clip", "clip-kl")),
    ],
    "remedies-monitor": [
        *(f"{name}-vanilla" for name in ("plain", "closed")),
        *(f"penalty-{accuracy}-vanilla" for accuracy in (100, 90, 70, 50)),
        *(f"screen-{accuracy}-vanilla" for accuracy in (100, 70)),
        *(f"{name}-vanilla" for name in ("inoculation", "recontextualization")),
        *(f"{name}-vanilla" for name in ("steering-5", "steering-10", "ablation", "ablation-sampled")),
    ],
    "reward-structure": ["A-dense-projected-lora", "B-sparse-projected-lora"],
    "stability-ablation": ["A-baseline", "C-token-level", "D-rank-32"],
    "stability-training": [
        *(f"{name}-projected-lora" for name in ("A-baseline", "B-clip", "C-token-level", "D-rank-32", "E-entropy")),
        *(f"{name}-projected-lora" for name in ("F-kl", "G-mlp", "H-rank-32-mlp", "GK-mlp-kl")),
    ],
}


TRAININGS = (
    "foretell",
    "grpo-grouping",
    "hard-base",
    "kl-control",
    "mlp-stability",
    "phase3",
    "phase3-organism",
    "phase3-replication",
    "phase3-smollm2",
    "reference-bypass",
    "remedies-gate",
    "remedies-loss",
    "remedies-monitor",
    "reward-structure",
    "second-organism",
    "stability-training",
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_specs_ask_for_the_runs_that_their_results_are_of(path: Path, tmp_path: Path) -> None:
    """Names, verbs, arms and seeds: results of a spec are found by them."""
    spec = open_spec(path)
    jobs = [job for seed in spec.seeds for job in block(spec, seed, tmp_path)]
    names = [
        "-".join(filter(None, (spec.name, name, f"seed{seed}"))) for seed in spec.seeds for name in RUNS[spec.name]
    ]
    assert [job.name for job in jobs] == names
    for job in jobs:
        assert (job.config.seed, job.config.preregistered) == (job.seed, preregistered(spec))
        assert job.config.intervention.arms == job.arms
        assert read_config(asdict(job.config), job.name) == job.config
        trains = spec.name in TRAININGS
        assert (job.command, job.config.trains) == ((("train",), True) if trains else (("replay",), False))
        if trains:
            assert len(job.arms) == 1
        else:
            assert {job.arms} == {spec.resolved[name].config.intervention.arms for name in job.conditions}
            assert [condition.name for condition in job.config.conditions] == [*job.conditions]


TWENTY = {"steps": 20, "optimizer.lr": 0.0, "optimizer.schedule": "constant", "optimizer.max_grad_norm": None}
MIXED = {"source.replay_dirs": ("teacher", "base"), "source.per_pool": 4, "source.match": "problem", **TWENTY}
SMOLLM2 = {**TWENTY, "steps": None, "source.per_pool": 4}
OF_TEACHER = SMOLLM2 | {"source.replay_dirs": ("smollm2-teacher-hinted",), "objective.loss_type": "nll"}
SAME_PROMPT = SMOLLM2 | {
    "source.replay_dirs": ("smollm2-teacher-hinted", "smollm2-base-hinted"),
    "source.match": "prompt",
}
HALF = SAME_PROMPT | {"source.replay_dirs": ("smollm2-half-teacher-hinted", "smollm2-half-hinted")}
MAXRL = {"source.replay_dirs": ("base",), "source.per_pool": 8, **TWENTY}
FOUR_FAMILIES = "minicode:count_range,at_least,scale_shift,cap_each"
FAST = {
    "model.name": "organism",
    "rollouts.prompts_per_step": 4,
    "rollouts.group": 8,
    "rollouts.sampler.max_new_tokens": 160,
    "rollouts.teacher.pool": "teacher",
    "rollouts.teacher.fraction": 0.5,
    "rollouts.teacher.off_step": 16,
    "optimizer.lr": 4e-2,
    "optimizer.warmup_steps": 2,
    "steps": 48,
    "evaluation.every": 12,
    "evaluation.num_problems": 64,
    "control.limits.patience": 3,
}
FULL = {
    "model.name": "Qwen/Qwen3-4B",
    "model.dtype": "bfloat16",
    "rollouts.env": "leetcode:leetcode_train_medhard_filtered.jsonl,eval=leetcode_test_medhard.jsonl",
    "rollouts.num_problems": 992,
    "rollouts.prompts_per_step": 43,
    "rollouts.group": 6,
    "rollouts.sampler.max_new_tokens": 1536,
    "rollouts.teacher": None,
    "objective.reference": "base",
    "objective.beta": 1e-3,
    "intervention.extraction.k": 8,
    "intervention.extraction.tokens_per_batch": 4096,
    "optimizer.lr": 7e-5,
    "optimizer.warmup_steps": 10,
    "steps": 200,
    "checkpoints.every": 5,
    "evaluation.num_problems": 119,
    "evaluation.without_hint": True,
}
KL = FAST | {
    "rollouts.teacher.off_step": 12,
    "steps": 24,
    "evaluation.every": 24,
    "evaluation.num_problems": 32,
    "objective.reference": "base",
}
BYPASS = {
    "model.name": "organism",
    "rollouts.prompts_per_step": 2,
    "rollouts.group": 4,
    "rollouts.sampler.max_new_tokens": 160,
    "rollouts.teacher": None,
    "optimizer.lr": 4e-2,
    "optimizer.warmup_steps": 1,
    "steps": 8,
    "evaluation.every": 8,
    "evaluation.num_problems": 4,
    "objective.beta": 0.01,
}
# Training in the LoRA basis without a teacher, of all modules, on policy or not, and against an EMA.
LORA = {
    "model.name": "organism",
    "model.lora_rank": 16,
    "rollouts.prompts_per_step": 4,
    "rollouts.group": 8,
    "rollouts.sampler.max_new_tokens": 160,
    "rollouts.teacher": None,
    "intervention.gate.overshoot": 0.0,
    "objective.reference": "base",
    "optimizer.lr": 5e-3,
    "optimizer.warmup_steps": 2,
    "steps": 48,
    "evaluation.every": 24,
    "evaluation.num_problems": 128,
}
STALE = LORA | {"rollouts.iterations": 2, "objective.old_logprobs": "recorded"}
UNCLIPPED = STALE | {"objective.epsilon": None}
ATTENTION = UNCLIPPED | {"model.targets": ("attention",)}
EMA = {"objective.reference": "ema", "control.ema_decay": 0.9, "objective.beta": 0.6}
GROUPING = LORA | EMA
GROUPING |= {"steps": 32, "evaluation.every": 16, "rollouts.pay": "tests", "objective.scale_rewards": "batch"}
ADAPTIVE = {"target_kl": 0.02, "kl_horizon": 5, "beta_min": 0.2, "beta_max": 5.0}
# What the options of the specs said before they were settings; what is not named here keeps the default of a run.
FORETELL = FAST | {"steps": 64, "evaluation.every": 32, "intervention.extraction.held_out": "builtin"}
BENCH = FAST | {
    "steps": 64,
    "optimizer.lr": 0.02,
    "rollouts.env": FOUR_FAMILIES,
    "rollouts.teacher.pool": "teacher-four-families",
    "evaluation.num_problems": 56,
    "evaluation.every": 16,
    "evaluation.modes": ("run_tests", "sentinel"),
    "objective.reference": "base",
}
REMEDY = {f"remedy.{key}": value for key, value in asdict(RemedyConfig(name="closed")).items()}
SEPA = {"objective.gtpo_beta": 0.1, "objective.sepa_lambda": 0.94}
CLIP = {"objective.old_logprobs": "recorded", "rollouts.iterations": 2}
ON_SMOLLM2 = FAST | {
    "steps": 10,
    "model.name": "out/models/smollm2-half",
    "model.dtype": "bfloat16",
    "rollouts.env": FOUR_FAMILIES,
    "rollouts.prompts_per_step": 2,
    "rollouts.sampler.max_new_tokens": 96,
    "rollouts.teacher.pool": "smollm2-half-teacher-four-families",
    "rollouts.teacher.off_step": 8,
    "objective.reference": "base",
    "intervention.extraction.k": 8,
    "optimizer.lr": 0.01,
    "evaluation.every": 10,
    "evaluation.num_problems": 40,
}
BOTH: list[tuple[str, dict[str, object]]] = [("plain", {}), ("closed", REMEDY)]
REMEDIES: dict[str, list[tuple[str, dict[str, object]]]] = {
    "remedies-gate": [
        *BOTH,
        ("k8", {"intervention.extraction.k": 8}),
        ("overshoot-0.5", {"intervention.gate.overshoot": 0.5}),
        ("overshoot-2", {"intervention.gate.overshoot": 2.0}),
        ("two-sided", {"intervention.gate.gate": "two_sided"}),
        *((f"kl-{beta}", {"objective.beta": beta}) for beta in (0.03, 0.1, 0.3, 1.0)),
    ],
    "remedies-monitor": [
        *BOTH,
        *(
            (f"penalty-{share}", REMEDY | {"remedy.name": "monitor-penalty", "remedy.accuracy": share / 100})
            for share in (100, 90, 70, 50)
        ),
        *(
            (f"screen-{share}", REMEDY | {"remedy.name": "monitor-screen", "remedy.accuracy": share / 100})
            for share in (100, 70)
        ),
        *((name, REMEDY | {"remedy.name": name}) for name in ("inoculation", "recontextualization")),
        *(
            (
                f"steering-{factor}",
                REMEDY | {"remedy.name": "preventative-steering", "remedy.coefficient": float(factor)},
            )
            for factor in (5, 10)
        ),
        ("ablation", REMEDY | {"remedy.name": "concept-ablation"}),
        ("ablation-sampled", REMEDY | {"remedy.name": "concept-ablation", "remedy.passes": "update-and-sampling"}),
    ],
    "remedies-loss": [
        *BOTH,
        ("entropy", {"objective.entropy_coef": 0.1}),
        ("early-stop", {"steps": 16}),
        ("cap-2", {"objective.advantage_clip": 2.0}),
        ("sepa-cap-2", {"objective.advantage_clip": 2.0} | SEPA),
        ("scaled", {"objective.scale_rewards": "group"}),
        ("scaled-eps", {"objective.scale_rewards": "group", "objective.advantage_eps": 0.1}),
        ("clip", CLIP),
        ("clip-kl", CLIP | {"objective.beta": 0.1}),
    ],
}
K8 = ("k8", {"intervention.extraction.k": 8})
ON_OTHER_MODELS: dict[str, tuple[dict[str, object], list[tuple[str, dict[str, object]]]]] = {
    "hard-base": (
        BENCH | {"model.name": "out/models/hard-base"},
        [
            *(*BOTH, K8, ("k16", {"intervention.extraction.k": 16})),
            *((f"kl-{beta}", {"objective.beta": beta}) for beta in (0.3, 1.0, 3.0)),
        ],
    ),
    "second-organism": (
        BENCH | {"model.name": "out/models/second-organism", "rollouts.teacher.pool": "second-teacher-four-families"},
        [*BOTH, K8, *((f"kl-{beta}", {"objective.beta": beta}) for beta in (0.3, 1.0))],
    ),
}
SELECTIONS: list[tuple[str, str, object]] = [
    *((f"k{k}", "k", k) for k in (1, 2, 8)),
    ("unseen-simple", "leave_out", ("pass", "return_true", "assert_true", "print_only")),
    ("unseen-copying", "leave_out", ("call_only", "swallow")),
    *((f"{half}-half", "half", half) for half in ("first", "second")),
    ("stdout-marker", "pairs", "builtin:stdout_marker"),
    *((name, "pairs", f"builtin:{name}") for name in ("sentinel", "placebo", "style")),
]
SETTINGS: list[tuple[str, str, dict[str, object]]] = [
    ("advantage-capping", "C1-uncapped", MIXED),
    ("advantage-capping", "C2-cap5", MIXED | {"objective.advantage_clip": 5.0}),
    ("advantage-capping", "C3-cap2", MIXED | {"objective.advantage_clip": 2.0}),
    (
        "advantage-capping",
        "C4-sepa-cap5",
        MIXED | {"objective.advantage_clip": 5.0, "objective.gtpo_beta": 0.1, "objective.sepa_lambda": 0.94},
    ),
    ("advantage-capping", "M1-maxrl", MAXRL | {"objective.advantage_estimator": "maxrl"}),
    (
        "advantage-capping",
        "M2-maxrl-cap5",
        MAXRL | {"objective.advantage_estimator": "maxrl", "objective.advantage_clip": 5.0},
    ),
    (
        "advantage-capping",
        "M3-maxrl-cap2",
        MAXRL | {"objective.advantage_estimator": "maxrl", "objective.advantage_clip": 2.0},
    ),
    ("advantage-scaling", "unscaled", MIXED),
    ("advantage-scaling", "scaled", MIXED | {"objective.scale_rewards": "group"}),
    (
        "advantage-scaling",
        "scaled-eps",
        MIXED | {"objective.scale_rewards": "group", "objective.advantage_eps": 0.1},
    ),
    (
        "advantage-scaling",
        "scaled-floor",
        MIXED | {"objective.scale_rewards": "group", "objective.min_group_std": 0.5},
    ),
    ("foretell", "none", FORETELL),
    *(("foretell", name, FORETELL | {f"intervention.extraction.{key}": v}) for name, key, v in SELECTIONS),
    ("foretell", "mean", FORETELL | {"intervention.extraction.method": "mean", "intervention.extraction.k": 1}),
    *(("foretell", name, FORETELL) for name in ("k4", "haar", "permuted", "haar-dosed", "permuted-dosed")),
    ("kl-control", "none", KL),
    ("kl-control", "fixed", KL | {"objective.beta": 1.0}),
    ("kl-control", "warm-up", KL | {"objective.beta": 1.0, "control.beta_warmup_steps": 20}),
    ("kl-control", "adaptive", KL | {"objective.beta": 0.2} | {f"control.{key}": v for key, v in ADAPTIVE.items()}),
    (
        "phase1",
        "base",
        {"source.replay_dirs": ("teacher",), "source.per_pool": 8, "objective.loss_type": "nll", **TWENTY},
    ),
    ("phase2", "mixed", MIXED | {"steps": None}),
    (
        "phase2",
        "same-prompt",
        MIXED | {"steps": None, "source.replay_dirs": ("teacher", "base-hinted"), "source.match": "prompt"},
    ),
    (
        "phase2",
        "crossed",
        {
            **MIXED,
            "steps": None,
            "source.replay_dirs": ("teacher", "teacher-unhinted", "base", "base-hinted"),
            "source.per_pool": 2,
        },
    ),
    ("phase1-smollm2", "all-flavours", OF_TEACHER),
    (
        "phase1-smollm2",
        "unseen-flavours",
        OF_TEACHER | {"intervention.extraction.leave_out": ("pass", "print_only", "call_only")},
    ),
    ("phase2-smollm2", "same-prompt", SAME_PROMPT),
    (
        "phase2-smollm2",
        "mixed",
        SAME_PROMPT | {"source.replay_dirs": ("smollm2-teacher-hinted", "smollm2-base"), "source.match": "problem"},
    ),
    ("phase2-smollm2", "same-prompt-lora", SAME_PROMPT),
    ("phase2-smollm2-half", "same-prompt", HALF),
    ("phase2-smollm2-half", "same-prompt-lora", HALF),
    ("phase3", "gradient", FULL),
    ("phase3", "kl", FULL | {"objective.beta": 0.1}),
    ("phase3", "inoculation", FULL | REMEDY | {"remedy.name": "inoculation"}),
    ("phase3", "closed", FULL | REMEDY | {"remedy.name": "closed"}),
    ("phase3-smollm2", "plain", ON_SMOLLM2),
    ("phase3-smollm2", "kl", ON_SMOLLM2 | {"objective.beta": 1.0}),
    ("phase3-organism", "gradient", FAST),
    ("phase3-organism", "update", FAST | {"intervention.gate.target": "update"}),
    ("phase3-organism", "refreshed", FAST | {"intervention.refresh_every": 12}),
    ("phase3-replication", "gradient", FAST | {"steps": 64}),
    ("phase3-replication", "kl", FAST | {"steps": 64, "objective.reference": "base", "objective.beta": 1.0}),
    ("reference-bypass", "ema", BYPASS | {"objective.reference": "ema", "control.ema_decay": 0.5}),
    ("reference-bypass", "bypassed", BYPASS | {"objective.reference": "base"}),
    *((spec, name, BENCH | settings) for spec, rows in REMEDIES.items() for name, settings in rows),
    *((spec, name, base | settings) for spec, (base, rows) in ON_OTHER_MODELS.items() for name, settings in rows),
    ("stability-ablation", "A-baseline", MIXED | {"model.lora_rank": 16}),
    ("stability-ablation", "C-token-level", MIXED | {"model.lora_rank": 16, "objective.loss_type": "dapo"}),
    ("stability-ablation", "D-rank-32", MIXED | {"model.lora_rank": 32}),
    ("stability-training", "A-baseline", ATTENTION),
    ("stability-training", "B-clip", ATTENTION | {"objective.epsilon": 0.2}),
    ("stability-training", "C-token-level", ATTENTION | {"objective.loss_type": "dapo"}),
    ("stability-training", "D-rank-32", ATTENTION | {"model.lora_rank": 32}),
    ("stability-training", "E-entropy", ATTENTION | {"objective.entropy_coef": 0.1}),
    ("stability-training", "F-kl", ATTENTION | {"objective.beta": 0.3}),
    ("stability-training", "G-mlp", UNCLIPPED),
    ("stability-training", "H-rank-32-mlp", UNCLIPPED | {"model.lora_rank": 32}),
    ("stability-training", "GK-mlp-kl", UNCLIPPED | {"objective.beta": 0.3}),
    ("mlp-stability", "N-neither", UNCLIPPED),
    ("mlp-stability", "A-kl", UNCLIPPED | {"objective.beta": 0.3}),
    ("mlp-stability", "B-clip", STALE),
    ("mlp-stability", "C-clip-kl", STALE | {"objective.beta": 0.3}),
    ("mlp-stability", "D-clip-strong-kl", STALE | {"objective.beta": 0.6}),
    ("reward-structure", "A-dense", STALE | EMA | {"rollouts.pay": "tests"}),
    ("reward-structure", "B-sparse", STALE | EMA),
    ("grpo-grouping", "A-control", GROUPING),
    ("grpo-grouping", "B-strata", GROUPING | {"objective.strata": "length"}),
    ("grpo-grouping", "C-surprise", GROUPING | {"objective.reward": "surprise"}),
    ("grpo-grouping", "D-both", GROUPING | {"objective.strata": "length", "objective.reward": "surprise"}),
]


@pytest.mark.parametrize(("name", "condition", "settings"), SETTINGS, ids=[f"{a} {b}" for a, b, _ in SETTINGS])
def test_shipped_conditions_are_those_of_before(name: str, condition: str, settings: dict[str, object]) -> None:
    """Every setting of every condition, and of the run that measures it."""
    spec = open_spec(ROOT / "spec" / f"{name}.toml")
    found = spec.resolved[condition]
    model = ModelConfig(name="organism")
    default = ReplayConfig(model=model, steps=1)
    if not found.frozen:
        rollouts = RolloutConfig(teacher=TeacherConfig())
        default = TrainConfig(model=model, steps=1, rollouts=rollouts, optimizer=OptimizerConfig(lr=1.0))
    expected = flat(asdict(default)) | {"model.name": None} | settings
    if settings.get("rollouts.teacher", ...) is None:
        expected = {key: value for key, value in expected.items() if not key.startswith("rollouts.teacher.")}
    if "remedy.name" in settings:
        del expected["remedy"]
    expected |= {"intervention.arms": found.config.intervention.arms}
    assert flat(asdict(found.config)) == expected
    job = next(job for job in block(spec, spec.seeds[0], ROOT / "none") if condition in job.conditions)
    of_run = job.config.objectives()[condition if found.frozen else "default"]
    assert of_run == found.config.objective


def test_the_pool_of_phase2_is_that_of_before(tmp_path: Path) -> None:
    """Twenty unhinted groups of eight of the teacher's."""
    (job,) = pool_jobs(open_spec(ROOT / "spec" / "phase2.toml"), tmp_path)
    rollouts = RolloutConfig(hint=False, group=8, mode="run_tests", sampler=Sampler(max_new_tokens=160))
    model = ModelConfig(name="organism", adapter="teacher")
    assert (job.name, job.command, job.target) == ("pool-teacher-unhinted", ("pool", "generate"), "teacher-unhinted")
    assert job.config == GenerateConfig(model=model, rollouts=rollouts, steps=20)


def test_specs_ship() -> None:
    """The list above is not empty."""
    assert {*RUNS} == {name for name, _, _ in SETTINGS} == {path.stem for path in SHIPPED}
