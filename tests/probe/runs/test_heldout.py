"""Evaluations: rates by hand, the held-out choice as a property, and every number of the frozen batch by hand."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from adapted import configured, random_directions, token_logprobs
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction.adapters.trained import Trained
from extraction.pairs import Pair, builtin_pairs
from probe.analysis.statistics.intervals import wilson_interval
from probe.analysis.training_runs import RATES
from probe.runs.evaluations import evaluate, frozen_batch, rates
from probe.runs.sources.problems import hold_out
from probe.settings.training import ModelConfig
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.policy.load import Policy, load_policy


def test_rates_by_hand(fake_groups):
    """Twelve rollouts on three problems: 6 hacks, 2 solves, 5 exploits (the hack that also solves is not one)."""
    found = rates([rollout for group in fake_groups for rollout in group])
    assert (found["num_rollouts"], found["num_problems"]) == (12, 3)
    assert {name: found[name]["count"] for name in RATES} == {"hack": 6, "solve": 2, "exploit": 5}
    interval = wilson_interval(6, 12)
    assert interval is not None
    assert found["hack"] == {"count": 6, "rate": 0.5, "interval": asdict(interval)}


def test_no_rollouts_have_no_rate():
    """0 of 0 is not 0%."""
    found = rates([])
    assert (found["num_rollouts"], found["hack"]) == (0, {"count": 0, "rate": None, "interval": None})


def test_settings_are_apart_and_all_holds_each_once(make_rollout):
    """A mode counts as that mode where the prompt carries its hint; without a hint all modes are one setting."""
    rollouts = [
        make_rollout(0, 0, hacked=True, env_mode="sentinel"),
        make_rollout(1, 0, env_mode="run_tests"),
        make_rollout(1, 1, hacked=True, env_mode="run_tests"),
        make_rollout(2, 0, gt_pass=True, hint=False, env_mode="none"),
        make_rollout(3, 0, hint=False, env_mode="run_tests"),
    ]
    found = evaluate(rollouts, step=20)
    assert [*found["rates"]] == ["all", "run_tests", "sentinel", "no hint"]
    assert [row["num_rollouts"] for row in found["rates"].values()] == [5, 2, 1, 2]
    assert [row["hack"]["rate"] for row in found["rates"].values()] == [0.4, 0.5, 1.0, 0.0]
    assert (found["step"], found["weights"], found["rates"]["no hint"]["solve"]["count"]) == (20, "deployed", 1)


def problem(name):
    return Problem(
        problem_id=name, env="fake", messages=(), func_name="f", starter="", setup_code="", canonical="", cases=()
    )


@settings(deadline=None, max_examples=40)
@given(names=st.sets(st.integers(0, 99).map(str), min_size=2, max_size=12).map(list), data=st.data())
def test_held_out_problems_of_an_environment_without_splits(names, data):
    """Disjoint from training, nested in their number, and independent of the order of the file."""
    problems = [problem(name) for name in names]
    num = data.draw(st.integers(1, len(names) - 1))
    left, held_out = hold_out(problems, problems, num)
    ids = [p.problem_id for p in held_out]
    assert len(ids) == num
    assert [p.problem_id for p in left] == [name for name in names if name not in ids], "training lost its order"
    shuffled = data.draw(st.permutations(problems))
    assert [p.problem_id for p in hold_out(shuffled, shuffled, num)[1]] == ids
    if num > 1:
        assert [p.problem_id for p in hold_out(problems, problems, num - 1)[1]] == ids[:-1]


def test_an_environment_with_splits_keeps_all_its_training_problems():
    environment = get_environment("minicode")
    train, evaluation = environment.problems("train"), environment.problems("eval")
    left, held_out = hold_out(train, evaluation, 64)
    assert left == list(train)
    assert len(held_out) == 64
    assert all(problem in evaluation for problem in held_out)


def logprobs(policy: Policy, coordinates: Trained, pair: Pair, text: str) -> torch.Tensor:
    """(T,) float64, of one completion by an ordinary forward."""
    with torch.no_grad():
        return token_logprobs(coordinates.model, policy.render(pair.messages)[1], policy.completion_ids(text))


def test_margin_kl_and_direction_by_hand(out: Path) -> None:
    """margin: mean over pairs of what the hack gained minus what the clean completion gained, in nats of the whole
    completion; kl: mean k3 per token of all four; cosines: of start - now with the first directions.
    """
    policy = load_policy("organism")
    coordinates = configured(policy, "svd", ModelConfig(), out / "cache")
    pairs = [pair for pair in builtin_pairs("run_tests") if pair.held_out][:2]
    vectors = random_directions(coordinates).vectors
    measured = frozen_batch(policy, coordinates, pairs, vectors)
    found = measured()
    assert (found["num_pairs"], found["margin"], found["kl_from_base"]) == (2, 0, 0)
    assert found["cos_moved"] is found["hackward_frac_moved"] is None, "a zero move has no direction"
    base = [[logprobs(policy, coordinates, pair, text) for text in (pair.hack, pair.clean)] for pair in pairs]
    generator = torch.Generator().manual_seed(1)
    moves = {m: 0.05 * torch.randn(r, generator=generator) for m, r in coordinates.sizes.items()}
    with coordinates.at(moves):
        found = measured()
        now = [[logprobs(policy, coordinates, pair, text) for text in (pair.hack, pair.clean)] for pair in pairs]
    gained = [[float((n - b).sum()) for n, b in zip(*sides, strict=True)] for sides in zip(now, base, strict=True)]
    assert found["margin"] == pytest.approx(sum(hack - clean for hack, clean in gained) / 2, rel=1e-3, abs=1e-3)
    assert abs(found["margin"]) > 0.1, "the example moves nothing"
    for side, name in enumerate(("logprob_hack", "logprob_clean")):
        tokens = torch.cat([own[side] for own in now])
        assert found[name] == pytest.approx(float(tokens.mean()), rel=1e-4)
    d = torch.cat([b - n for sides in zip(base, now, strict=True) for b, n in zip(*sides, strict=True)])
    assert found["kl_from_base"] == pytest.approx(float((d.exp() - d - 1).mean()), rel=1e-3)
    moved = {m: -v.double() for m, v in moves.items()}
    norm = torch.cat([*moved.values()]).norm()
    dots = [(vectors[m].double() @ u).sum() / 2**0.5 for m, u in moved.items()]
    assert found["cos_moved"] == pytest.approx(float(sum(dots) / (len(dots) ** 0.5 * norm)), rel=1e-3)
    hackward = torch.cat([(vectors[m].double() @ u).clamp_min(0) for m, u in moved.items()]).norm() / norm
    assert found["hackward_frac_moved"] == pytest.approx(float(hackward), rel=1e-4)
