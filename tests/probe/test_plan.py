"""Plans: what a spec can detect, what it costs, what is vacuous in it, all before the first run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from extraction.adapters.coordinates import attach
from extraction.words import Storage
from probe.analysis.statistics.power import mde
from probe.cli import cli
from probe.cli._frame import run
from probe.experiments.planning.checks import open_spec
from probe.experiments.spec.vacuity import vacuous_parts
from probe.runs.footprint import memory, sampling_memory
from probe.runs.sources.problems import Tally
from probe.runs.train import TrainingInputs
from probe.settings.presets import configure
from probe.settings.training import ModelConfig
from probe.step.groups import stored_reward
from replay_pools.environments.loopholes import render_messages
from replay_pools.policy.load import load_policy, load_skeleton
from replay_pools.pool import BUILTIN, PoolWriter, open_pool
from replay_pools.sampling.decoding import Decoder

ROOT = Path(__file__).parents[2]
SPEC = """
arms = [{arms}]
seeds = [{seeds}]
[experiment]
name = "planned"
question = "What does it cost?"
hypotheses = ["Little."]
[settings]
verb = "replay"
steps = 10
[[conditions]]
name = "plain"
[[conditions]]
name = "other"
{other}
[[criteria]]
name = "main"
metric = "{metric}"
statistic = "mean"
comparison = ">"
threshold = 0.0
unit = "prompt"
role = "primary"
{main}
[[decisions]]
name = "MORE"
[budget]
{budget}
"""


TRAINED = """
arms = ["vanilla", "route"]
seeds = [0, 1, 2]
[experiment]
name = "trained"
question = "What does it cost?"
hypotheses = ["Little."]
[settings]
verb = "train"
preset = "fast"
steps = 10
[[conditions]]
name = "plain"
[[conditions]]
name = "other"
arms = ["vanilla"]
{other}
[[criteria]]
name = "main"
metric = "hack_final"
statistic = "upper95"
comparison = "<"
threshold = 0.0
unit = "seed"
role = "primary"
arm = "route"
versus_arm = "vanilla"
[[decisions]]
name = "MORE"
[budget]
sd = 0.15
paired_correlation = 0.3
expected_effect = 0.5
"""


OTHER = "conditions.other.settings"
K = "settings.intervention.extraction.k = 2"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(other, metric, main, budget, seeds, arms) -> a spec with these lines."""
    defaults = {"other": K, "metric": "cos_in", "main": 'null = "N2"', "budget": "", "seeds": "0"}
    defaults["arms"] = '"vanilla", "projected", "placebo"'

    def make(**lines: str) -> Path:
        path = tmp_path / "planned.toml"
        path.write_text(SPEC.format(**defaults | lines))
        return path

    return make


def vacuous(path: Path) -> dict[str, str]:
    return {part.where: part.why for part in vacuous_parts(open_spec(path), Path("out"))}


def test_a_sound_spec_has_no_vacuous_part(write: Callable[..., Path]) -> None:
    assert vacuous(write()) == {}


VACUOUS: list[tuple[dict[str, str], str, str]] = [
    (
        {"other": "settings.objective.advantage_clip = 5.0"},
        f"{OTHER}.objective.advantage_clip",
        "not below 3.06",
    ),
    (
        {"other": 'settings.objective = { advantage_clip = 7.0, advantage_estimator = "maxrl" }'},
        f"{OTHER}.objective.advantage_clip",
        "below 7,",
    ),
    (
        {"other": 'settings.objective = { advantage_clip = 2.5, scale_rewards = "group" }'},
        f"{OTHER}.objective.advantage_clip",
        "not below 2.47",
    ),
    (
        {"other": 'settings.objective = { loss_type = "nll", advantage_clip = 1.0 }'},
        f"{OTHER}.objective.advantage_clip",
        "no advantage",
    ),
    (
        {"other": "settings.objective.epsilon = 0.1"},
        f"{OTHER}.objective.epsilon",
        "the ratio is 1 in every step",
    ),
    (
        {"other": 'settings.objective = { reference = "base", beta = 0.01 }'},
        f"{OTHER}.objective.beta",
        "the policy is its reference",
    ),
    (
        {"other": 'settings.objective = { reference = "ema", beta = 0.01 }'},
        f"{OTHER}.objective.beta",
        "its gradient are 0",
    ),
    ({"other": ""}, "conditions.other", "same settings as plain"),
    (
        {"other": 'settings.intervention.extraction.pairs = "builtin:placebo"'},
        f"{OTHER}.intervention.extraction.pairs",
        "no control",
    ),
    (
        {
            "other": 'settings.objective.scale_rewards = "group"',
            "main": 'condition = "other"\nversus_condition = "plain"',
        },
        "criteria.main",
        "one positive number",
    ),
    (
        {"metric": "cos_out", "main": 'arm = "projected"\nversus_arm = "vanilla"'},
        "criteria.main",
        "identity of the gate",
    ),
    ({"main": 'null = "pair-swap"'}, "criteria.main.null", "that control is void"),
    ({"main": ""}, "criteria.main.null", "matched null"),
    ({"seeds": "0, 1"}, "seeds", "nulls belong to one run"),
    (
        {"other": "settings.objective.hicra_alpha = 0.5"},
        f"{OTHER}.objective.hicra_alpha",
        "none of the 20 planning phrases occurs",
    ),
    (
        {"other": "settings.objective.hicra_alpha = 0.5\nsettings.planning_phrases = []"},
        f"{OTHER}.objective.hicra_alpha",
        "there are no planning phrases",
    ),
    ({"other": 'settings.planning_phrases = ["hm"]'}, f"{OTHER}.planning_phrases", "nothing reads them"),
    ({"other": "settings.objective.min_group_std = 0.5"}, f"{OTHER}.objective.min_group_std", "no group is skipped"),
    ({"other": "settings.objective.min_group_std = 2.0"}, f"{OTHER}.objective.min_group_std", "every group is skipped"),
    ({"other": f"{K}\nsettings.control.sepa_gate = 0.5"}, f"{OTHER}.control.sepa_gate", "sepa_lambda is 0"),
    ({"other": f"{K}\nsettings.control.kl_horizon = 5"}, f"{OTHER}.control.kl_horizon", "beta is not adapted"),
    ({"budget": '[stop]\nspending = "obrien-fleming"\nalpha = 0.05'}, "stop", "no independent blocks"),
]


@pytest.mark.parametrize(("changes", "where", "why"), VACUOUS, ids=[why for _, _, why in VACUOUS])
def test_vacuous_parts_are_named_with_the_reason(
    write: Callable[..., Path], changes: dict[str, str], where: str, why: str
) -> None:
    """Each change makes exactly one part vacuous."""
    found = vacuous(write(**changes))
    assert list(found) == [where], found
    assert why in found[where]


def test_a_quarantine_of_frozen_weights_is_empty(write: Callable[..., Path]) -> None:
    """In a replay, in the condition whose arms hold it; with a learning rate something is parked."""
    arms = '"vanilla", "route"'
    found = vacuous(write(arms=arms, other=f'{K}\narms = ["vanilla"]'))
    assert list(found) == ["conditions.plain.arms"]
    assert "the arm route is vanilla" in found["conditions.plain.arms"]
    assert "conditions.other.arms" not in vacuous(write(arms=arms, other="settings.optimizer.lr = 0.001"))


def test_credit_of_phrases_that_occur_is_left_alone(write: Callable[..., Path]) -> None:
    """`return` is in the stored completions, in any case and as a whole word; a part of a word is not."""
    hicra = "settings.objective.hicra_alpha = 0.5\nsettings.planning_phrases = "
    assert vacuous(write(other=f'{hicra}["RETURN"]')) == {}
    assert list(vacuous(write(other=f'{hicra}["retur"]'))) == [f"{OTHER}.objective.hicra_alpha"]


def test_a_cap_is_compared_with_the_rewards_of_the_pools(tmp_path: Path, write: Callable[..., Path]) -> None:
    """In a pool where nothing passes, rewards are .5 apart and |A| at most .4375: a cap of .45, which could bind on the
    whole pool, never does.
    """
    base = open_pool(BUILTIN / "base")
    writer = PoolWriter(tmp_path / "failures", header=base.header())
    failures = [group for group in base.steps if {rollout.reward for rollout in group} == {0.0, 0.5}]
    for number, group in enumerate(failures):
        writer.write_step(number, [replace(rollout, step=number) for rollout in group])
    writer.finish()
    capped = "settings = { steps = 1, objective.advantage_clip = 0.45, source = { replay_dirs = [%r], per_pool = 8 } }"
    found = vacuous(write(other=capped % str(tmp_path / "failures")))
    assert "not below 0.438" in found[f"{OTHER}.objective.advantage_clip"]
    assert "rewards 0.5 apart" in found[f"{OTHER}.objective.advantage_clip"]
    assert vacuous(write(other=(capped % "base").replace("steps = 1, ", ""))) == {}


def test_what_may_act_is_left_alone(write: Callable[..., Path]) -> None:
    """Clips of a ratio to recorded log-probabilities; a KL from those; the same penalty once weights move."""
    assert vacuous(write(other='settings.objective = { epsilon = 0.1, old_logprobs = "recorded" }')) == {}
    assert vacuous(write(other='settings.objective = { reference = "recorded", beta = 0.01 }')) == {}
    assert (
        vacuous(write(other='settings.objective = { reference = "base", beta = 0.01 }\nsettings.optimizer.lr = 0.001'))
        == {}
    )


TRAIN_VACUOUS: list[tuple[str, str, str]] = [
    ("settings.objective.advantage_clip = 3.1", f"{OTHER}.objective.advantage_clip", "a group of 8"),
    ("settings.objective.epsilon = 0.1", f"{OTHER}.objective.epsilon", "the ratio is 1"),
    ("settings.control.ema_decay = 0.5", f"{OTHER}.control.ema_decay", "the reference is None"),
    ("settings.control.beta_warmup_steps = 5", f"{OTHER}.control.beta_warmup_steps", "beta is 0"),
    (
        'settings.rollouts.teacher = "none"\nsettings.objective = { epsilon = 0.1, old_logprobs = "recorded" }',
        f"{OTHER}.objective.epsilon",
        "sampled by the weights of its one step",
    ),
    (
        '[stop]\nspending = "obrien-fleming"\nalpha = 0.05\nmin_blocks = 3\n[conditions.settings]\nsteps = 3',
        "stop.min_blocks",
        "the first look comes after the last of 3 seeds",
    ),
    ("", "conditions.other", "same settings as plain"),
]


@pytest.mark.parametrize(("other", "where", "why"), TRAIN_VACUOUS, ids=[where for _, where, _ in TRAIN_VACUOUS])
def test_vacuous_parts_of_a_training_spec(tmp_path: Path, other: str, where: str, why: str) -> None:
    """Groups are those of the preset (8 rollouts); defaults of the loss are nobody's claim."""
    path = tmp_path / "trained.toml"
    path.write_text(TRAINED.format(other=other))
    found = vacuous(path)
    assert list(found) == [where], found
    assert why in found[where]


def test_the_clip_of_stale_rollouts_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trained.toml"
    rollouts = 'settings.rollouts = { teacher = "none", prefetch = 1 }'
    objective = 'settings.objective = { epsilon = 0.1, old_logprobs = "recorded" }'
    path.write_text(TRAINED.format(other=f"{rollouts}\n{objective}"))
    assert vacuous(path) == {}


def test_a_scale_that_is_not_of_the_whole_group_is_left_alone(write: Callable[..., Path]) -> None:
    """Strata have a factor each, an entropy bonus none; and two arms differ whatever the scale is."""
    compared = 'condition = "other"\nversus_condition = "plain"'
    scaled = 'settings.objective.scale_rewards = "group"'
    for term in ('objective.strata = "source"', "objective.entropy_coef = 0.1"):
        path = write(other=scaled, main=compared)
        assert list(vacuous(path)) == ["criteria.main"]
        path.write_text(path.read_text().replace("steps = 10", f"steps = 10\n{term}", 1))
        assert vacuous(path) == {}
    arms = f'{compared}\narm = "vanilla"\nversus_arm = "random"'
    assert vacuous(write(arms='"vanilla", "random"', other=scaled, main=arms)) == {}


def test_caps_that_can_bind_are_left_alone(write: Callable[..., Path]) -> None:
    """2 < 3.06 centred; 5 < 7 for maxrl; a scaled comparison with a cap is no identity."""
    assert vacuous(write(other="settings.objective.advantage_clip = 2.0")) == {}
    assert vacuous(write(other='settings.objective = { advantage_clip = 5.0, advantage_estimator = "maxrl" }')) == {}
    compared = 'condition = "other"\nversus_condition = "plain"'
    assert (
        vacuous(
            write(
                other='settings.objective = { scale_rewards = "group", advantage_clip = 1.0 }',
                main=compared,
            )
        )
        == {}
    )


def plan(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    assert run(cli, ["plan", *args, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_numbers_of_a_plan(write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 6 runs of 60 s and 10 steps at 30 s, 4 an hour; 9 runs of 7.2 hours at 6.15; effects as in power."""
    budget = "price_per_hour = 4.0\n[budget.go]\nseeds = 3\narms = 3\nhours_per_run = 7.2\nprice_per_hour = 6.15\n"
    budget += 'sd = 0.15\nexpected_effect = 0.3\npaired_correlation = 0.5\neffect_unit = "rate"'
    path = write(seeds="0, 1, 2", budget=budget)
    timed = tmp_path / "timed"
    timed.mkdir()
    start = '{"start":{"load":{"seconds":50,"cache":null},"svd":{"seconds":10,"cache":"computed"}}}\n'
    (timed / "timings.jsonl").write_text(
        start + '{"step":0,"seconds":39}\n{"step":1,"seconds":31}\n{"step":2,"seconds":20}\n'
    )
    found = plan(capsys, str(path), "--run", str(timed))
    own, go = found["prices"]
    assert (own["runs"], own["hours"], own["money"]) == (6, pytest.approx(0.6), pytest.approx(2.4))
    assert "30 s a step, 60 s before the first" in own["source"]
    assert (go["runs"], go["hours"], go["money"]) == (9, pytest.approx(64.8), pytest.approx(398.52))
    planned = next(effect for effect in found["go_effects"] if effect["planned"])
    assert planned == {
        "n": 3,
        "paired": mde(0.15, 3, paired_correlation=0.5),
        "unpaired": mde(0.15, 3),
        "planned": True,
    }
    assert any("CANNOT see the expected effect of 0.3 rate" in note for note in found["notes"])
    assert any("[budget] states no sd" in note for note in found["notes"]), "nothing is left out silently"
    path.write_text(path.read_text().replace("steps = 10", ""))
    all_groups, _ = plan(capsys, str(path), "--run", str(timed))["prices"]
    assert all_groups["hours"] == pytest.approx(6 * (60 + 40 * 30) / 3600), "a step for each of the pools' 40 groups"


def test_the_plan_of_a_training_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """9 runs (two arms and one, three seeds) of 10 and 20 steps; times of the spec's own finished runs; one arm."""
    path, out = tmp_path / "trained.toml", tmp_path / "out"
    path.write_text(TRAINED.format(other="settings.steps = 20"))
    for arm, seconds in (("vanilla", 20), ("route", 40)):
        run_dir = out / "runs" / f"trained-plain-{arm}-seed0"
        run_dir.mkdir(parents=True)
        (run_dir / "manifest.json").write_text("{}")
        (run_dir / "timings.jsonl").write_text(f'{{"step":0,"seconds":{seconds}}}\n')
    found = plan(capsys, str(path), "--out", str(out))
    assert found["runs"] == 9
    assert found["prices"][0]["hours"] == pytest.approx((6 * 10 + 3 * 20) * 30 / 3600), "a condition's own steps"
    assert "measured in 2 finished runs of this spec" in found["prices"][0]["source"]
    assert any("moments of AdamW" in row["what"] for row in found["memory"])
    assert any("32 sample gradients" in row["what"] for row in found["memory"]), "4 prompts x 8 rollouts a step"
    (note,) = found["notes"]
    assert "CANNOT see the expected effect of 0.5: the smallest detectable one is 0.579 (paired)" in note
    assert "pays above a correlation of 0.42 with 3 seeds, 0.3 is stated" in note


def test_what_cannot_be_said_is_noted(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """No timings, no stated hours, pools that are not there: notes, not errors, and no invented number."""
    found = plan(capsys, str(write(other='settings.source.replay_dirs = ["nowhere"]')))
    assert found["prices"] == []
    notes = " ".join(found["notes"])
    assert "no hours" in notes
    assert "no memory of condition other" in notes


def test_check_exits_with_one_for_a_vacuous_part(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(other="settings.objective.advantage_clip = 5.0"))
    assert run(cli, ["plan", path]) == 0
    assert "VACUOUS  conditions.other.settings.objective.advantage_clip" in capsys.readouterr().out
    assert run(cli, ["plan", path, "--check"]) == 1


def test_memory_is_that_of_the_adapted_model(tmp_path: Path) -> None:
    """Coordinates and weights against those of the organism, really adapted; the skeleton itself holds nothing."""
    policy = load_policy("organism")
    weights = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    skeleton = load_skeleton("organism")
    assert all(p.is_meta for p in skeleton.parameters())
    rows = memory(
        skeleton,
        ModelConfig(lora_rank=4),
        bases={"svd", "lora"},
        num_samples=8,
        k=2,
        num_direction_sets=3,
        num_pairs=5,
    )
    sizes = {row.what: row.num_bytes for row in rows}
    assert sizes["weights (float32)"] == weights
    for basis, options in (("svd", {}), ("lora", {"rank": 4, "train_a": False})):
        own = load_policy("organism")
        coordinates = attach(own.model, basis=basis, model_id="organism", **options)  # type: ignore[arg-type]
        numbers = sum(coordinates.sizes.values())
        assert sizes[f"{basis}: coordinates and 8 sample gradients"] == 4 * 9 * numbers
        assert sizes[f"{basis}: 3 x 2 directions"] == 4 * 6 * numbers
        assert sizes[f"{basis}: gradients of 5 pairs"] == 4 * 10 * numbers


@pytest.mark.parametrize(
    ("rank", "storage", "gigabytes", "numbers"),
    [(None, "float32", 4.68, 0.53e6), (None, "bfloat16", 2.34, 0.53e6), (256, "bfloat16", 0.25, 64.5e3)],
)
def test_memory_of_a_large_model_needs_no_weights(
    rank: int | None, storage: Storage, gigabytes: float, numbers: float
) -> None:
    """Qwen3-4B shapes: 7.5 GiB of weights in bf16; factors and coordinates by rank and storage."""
    config = AutoConfig.for_model(
        "qwen3",
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    rows = memory(
        model,
        ModelConfig(dtype="bfloat16", svd_rank=rank, svd_storage=storage),
        bases={"svd"},
        num_samples=8,
        k=4,
        num_direction_sets=3,
        num_pairs=48,
    )
    weights, factors, coordinates, *_ = [row.num_bytes for row in rows]
    assert weights / 2**30 == pytest.approx(7.5, abs=0.05)
    assert factors / 2**30 == pytest.approx(gigabytes, abs=0.02)
    assert coordinates / (4 * 9) == pytest.approx(numbers, rel=0.01)


@pytest.mark.parametrize("num_problems", [2, 12])
def test_memory_contains_the_cache_of_sampling(num_problems: int) -> None:
    """Within 20% of the largest cache that is made of a run's prompts: in training (8 rows), or to evaluate (12)."""
    options = {"evaluation.num_problems": num_problems}
    config = configure("train", preset="smoke", options=options)
    rollouts, policy = config.rollouts, load_policy("organism")
    inputs = TrainingInputs(config, Path("none"), Path("none"))
    problems, held_out = inputs.problems, inputs.held_out
    tally = Tally(lambda batch: {}, stored_reward)
    batches = [problems.batch(batch, tally) for batch in range(problems.num_batches)]
    made = []
    for batch, group in [*((batch, rollouts.group) for batch in batches), (held_out, 1)]:
        prompts = [policy.render(render_messages(problem, rollouts.mode, hint=rollouts.hint))[1] for problem in batch]
        with torch.no_grad():
            decoder = Decoder(policy.model, prompts * group, rollouts.sampler.max_new_tokens, policy.pad_id)
        made.append(sum(states.nbytes for layer in decoder._cache.layers for states in layer._whole))
    assert made.index(max(made)) == len(batches) if num_problems == 12 else made.index(max(made)) < len(batches)
    row = sampling_memory(policy.model, "organism", config, freed=0)
    assert row.num_bytes == pytest.approx(max(made), rel=0.2)
    beyond = sampling_memory(policy.model, "organism", config, freed=row.num_bytes - 1)
    assert beyond.num_bytes == 1, "sampling and passes take turns"


def test_shipped_specs_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every one plans, and a dry run prints a command for each run and pool. Of all their parts two are vacuous, which
    their .md files explain: a cap of 5, and a floor under the standard deviation that no stored group is below.
    """
    found = []
    for path in sorted((ROOT / "spec").glob("*.toml")):
        own = plan(capsys, str(path), "--out", str(tmp_path))
        found += [f"{path.stem} {part['where']}" for part in own["vacuous"]]
        assert run(cli, ["sweep", str(path), "--dry-run", "--out", str(tmp_path)]) == 0
        commands = capsys.readouterr().out.splitlines()
        assert len([line for line in commands if line.startswith(("probe replay", "probe train"))]) == own["runs"]
        # For a model that is made first, or for pools of one.
        waits = any("name no model yet" in note or "there is no out/models/" in note for note in own["notes"])
        assert bool(own["memory"]) != waits, f"{path.stem}: no memory"
    assert found == [
        "advantage-capping conditions.C2-cap5.settings.objective.advantage_clip",
        "advantage-scaling conditions.scaled-floor.settings.objective.min_group_std",
    ]
