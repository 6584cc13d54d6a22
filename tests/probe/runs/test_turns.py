"""Rollouts of several turns: only the ids that the policy sampled have loss, in every number of a replay."""

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from adapted import members_of, token_logprobs

from extraction.adapters.trained import Trained
from extraction.pair_files import read_pair_file
from probe.records.run import read_run, read_tokens
from probe.runs.join import sample_records
from probe.runs.replay_inputs import taken_pairs
from probe.settings.arms import get_arm
from probe.settings.loss import LossSettings
from probe.step.bases import Bases
from probe.step.groups import RolloutKey, make_group
from probe.step.reference import References
from probe.step.step import Measure, StepResult, train_step
from replay_pools.grading.grade import Grader
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.regrade import regrade_pool
from replay_pools.rollout import Rollout

RANK = {"svd": {}, "lora": {"rank": 2}}
LOSSES = {
    "grpo": LossSettings(),
    "dr_grpo": LossSettings(loss_type="dr_grpo", max_completion_length=9),
    "dapo": LossSettings(loss_type="dapo"),
}
COMPLETIONS = [
    ([4, 9, 5, 7], [True, False, False, True]),
    ([8, 6], None),
    ([3, 5, 4, 2, 9], [True, True, False, True, True]),
]


def stored(make_rollout: Callable[..., Rollout]) -> list[Rollout]:
    rollouts = []
    for i, (ids, mask) in enumerate(COMPLETIONS):
        changes = {"completion_ids": ids, "comp_len": len(ids), "completion_mask": mask, "sampling_logprobs": None}
        rollouts.append(make_rollout(0, i, reward=i % 2 + 1, **changes))
    return rollouts


def replayed(coordinates: Trained, rollouts: list[Rollout]) -> tuple[StepResult, dict[str, torch.Tensor]]:
    """One step of stored rollouts under every loss, along fixed directions."""
    generator = torch.Generator().manual_seed(0)
    vectors = {
        m: torch.nn.functional.normalize(torch.randn(1, r, generator=generator, dtype=torch.float64))
        for m, r in coordinates.sizes.items()
    }
    group = make_group(0, [(RolloutKey("p", 0, i), rollout) for i, rollout in enumerate(rollouts)])
    arm = get_arm("vanilla" if coordinates.basis == "svd" else "vanilla-lora")
    result = train_step(
        Bases(**members_of(coordinates)),
        [group],
        [Measure(condition=name, arm=arm, vectors=vectors, side="one_sided") for name in LOSSES],
        conditions=LOSSES,
        planning=[[False] * len(ids) for ids, _ in COMPLETIONS],
        pad_id=0,
        references=References(coordinates),
    )
    return result, vectors


@pytest.mark.parametrize("basis", ["svd", "lora"])
def test_a_replay_of_turns_is_autograd_of_the_sampled_tokens(basis: str, make_tiny, make_rollout) -> None:
    """Reference: the full sequence once a rollout, and the sum over its sampled tokens alone, in float64."""
    coordinates, rollouts = make_tiny(basis, **RANK[basis]), stored(make_rollout)
    result, vectors = replayed(coordinates, rollouts)
    axis = torch.cat([v[0] for v in vectors.values()]) / len(vectors) ** 0.5
    rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
    lengths = torch.tensor([2, 2, 4])
    divisors = {"grpo": 3 * lengths, "dr_grpo": torch.tensor([27] * 3), "dapo": torch.tensor([8] * 3)}
    gradients = []
    for i, (rollout, (ids, mask)) in enumerate(zip(rollouts, COMPLETIONS)):
        logprobs = token_logprobs(coordinates.model, rollout.prompt_ids, ids)
        nll = -sum(logprobs[t] for t in range(len(ids)) if mask is None or mask[t])
        parts = torch.autograd.grad(nll, coordinates.parameters())
        gradients.append(torch.cat([part.flatten() for part in parts]))
        assert float(result.nll[i]) == pytest.approx(nll.item() / int(lengths[i]), rel=1e-9)
    for arm in result.arms:
        weights = (rewards - rewards.mean()) / divisors[arm.measure.condition]
        total = sum(weight * gradient for weight, gradient in zip(weights, gradients))
        assert float(arm.projection.before.norm) == pytest.approx(float(total.norm()), rel=1e-6)
        assert float(arm.projection.before.cos) == pytest.approx(float(axis @ total / total.norm()), rel=1e-6)
        for i, gradient in enumerate(gradients):
            norm = float(gradient.norm())
            assert float(arm.contribution_norms[i]) == pytest.approx(abs(float(weights[i])) * norm, rel=1e-6)
            assert float(arm.cos_nll[i]) == pytest.approx(float(axis @ gradient) / norm, rel=1e-6)
    group = make_group(0, [(RolloutKey("p", 0, i), rollout) for i, rollout in enumerate(rollouts)])
    records = sample_records([group], rollouts, result, result.arms[0])
    assert [record.comp_len for record in records] == lengths.tolist()


def test_the_pool_of_turns_by_the_real_commands(out: Path, few_pairs: list[str], probe) -> None:
    """Verify, draft, show, replay with shares of tokens, analyze and report."""

    def calling(*words: str) -> str:
        return probe(*words)[0]

    pool = open_pool(BUILTIN / "tool")
    calling("pool", "verify", "tool", "--model", "organism")
    first = pool.steps[0][0]
    assert first.completion_mask is not None
    assert [is_sampled for is_sampled, _ in first.turns] == [True, False, True]
    screen = calling("show", "tool", "0", "0")
    assert "tool or user | The example" in screen
    facts = json.loads(calling("pool", "show", "tool", "--json"))
    longest = max(rollout.num_sampled for group in pool.steps for rollout in group)
    assert facts["completion_tokens"]["max"] == longest
    calling("pool", "draft", "tool", "--name", "turns")
    drafted = read_pair_file(str(out / "pairs" / "turns.jsonl"))
    ids = {tuple(rollout.completion_ids) for group in pool.steps for rollout in group}
    for pair in drafted:
        assert not isinstance(pair.hack, str)
        assert tuple(token for turn in pair.hack for token in turn["ids"]) in ids
    assert len(taken_pairs(drafted, chain(*pool.steps))) == len(drafted), "they are rollouts of the pool"
    options = ["--steps", "2", "--arm", "vanilla,projected", "--set", "token_attribution=1", *few_pairs]
    calling("replay", "--replay-dirs", "tool", "--name", "turns", *options)
    done = read_run(out / "runs" / "turns")
    stored_rollouts = {(group[0].step, rollout.sample_id): rollout for group in pool.steps for rollout in group}
    sampled = [stored_rollouts[sample.src_step, sample.src_sample].num_sampled for sample in done.samples]
    assert [sample.comp_len for sample in done.samples] == sampled
    assert all(
        tokens.cos == pytest.approx(sum(tokens.prompt or ()) + sum(tokens.completion or ()), abs=1e-5)
        for tokens in read_tokens(done.path, done.manifest).values()
    )
    for step in "01":  # with and without shares of tokens
        assert "tool or user | The example" in calling("show", "turns", step, "0")
    calling("analyze", "turns")
    calling("report", "turns")
    page = (out / "reports" / "turns.html").read_text()
    rows = json.loads(page.split('id="rollout-data">')[1].partition("</script>")[0])["rows"]
    assert {tuple(turn["by"] for turn in row["turns"]) for row in rows} >= {("policy", "tool or user", "policy")}
    assert {"shares" in row["turns"][0] for row in rows} == {True, False}
    assert all("shares" not in turn for row in rows for turn in row["turns"][1::2])


def test_the_last_turn_is_graded(tmp_path: Path) -> None:
    """A regrading of the pool of turns gives the labels of its grader."""
    pool = open_pool(BUILTIN / "tool").only([0])
    with Grader(workers=1) as grader:
        regraded = regrade_pool(tmp_path / "again", pool, grader)
    assert [rollout.grade for rollout in regraded.steps[0]] == [rollout.grade for rollout in pool.steps[0]]
    assert regraded.steps[0][0].completion_mask == pool.steps[0][0].completion_mask
