"""The main job: records, linearity, one pass for all arms, the two bases, refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapted import adapt, configured, sampled, token_logprobs

from extraction.batch import make_batch
from extraction.directions import load_directions
from extraction.library import DirectionLibrary
from extraction.words import ExtractionSettings
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.settings.training import ModelConfig
from probe.step.groups import ReplaySource
from replay_pools.policy.load import load_policy
from replay_pools.pool import BUILTIN, open_pool


def test_contribution_cosine_is_the_nll_cosine_signed_by_the_advantage(many_arms: Path) -> None:
    """A_i w_i g_i points along g_i or against it; where A_i = 0 there is no direction and a reason is recorded."""
    for row in read_run(many_arms).samples:
        if row.advantage == 0:
            assert row.cos_S_contrib is None
            assert row.null_reason
        else:
            assert row.cos_S_nll is not None
            sign = 1 if row.advantage > 0 else -1
            assert row.cos_S_contrib == pytest.approx(sign * row.cos_S_nll, abs=1e-12)


def test_gates_act_in_projecting_arms_only(many_arms: Path) -> None:
    """Vanilla leaves the gradient alone; one_sided leaves no hack-ward part (both are identities)."""
    for row in read_run(many_arms).steps:
        if row.cos_in is None:
            assert row.null_reason
        elif row.arm == "vanilla":
            assert (row.cos_in, row.hackward_frac_in, row.frac_fired) == (row.cos_out, row.hackward_frac_out, 0)
        else:
            assert row.hackward_frac_out is not None
            assert row.hackward_frac_out < 1e-5


def test_many_arms_equal_separate_runs(many_arms: Path, replay: Callable[..., Path], quick: list[str]) -> None:
    alone = read_run(replay("alone", *quick[:2], "--arm", "permuted", "--steps", "6"))
    together = read_run(many_arms)
    assert alone.steps == [row for row in together.steps if row.arm == "permuted"]
    assert alone.samples == [row for row in together.samples if row.arm == "permuted"]


def test_records_equal_the_slow_way(many_arms: Path, out: Path, small: str) -> None:
    """Reference: one rollout at a time through autograd, contributions and cosines spelled out module by module."""
    policy = load_policy(small)
    coordinates = configured(policy, "svd", ModelConfig(), out / "cache")
    library = DirectionLibrary(policy, coordinates.start, ExtractionSettings(), cache_dir=out / "cache")
    vectors = library.v_hack.vectors
    pools = [open_pool(BUILTIN / name) for name in ("teacher", "base")]
    source = ReplaySource(pools, steps=6)
    run_ = read_run(many_arms)
    step = next(row.step for row in run_.steps if row.cos_in is not None)
    group = source.groups(step)[0]
    rewards = torch.tensor(group.rewards)
    advantages = rewards - rewards.mean()
    total = {m: torch.zeros(r) for m, r in coordinates.sizes.items()}
    for i, (prompt, completion) in enumerate(zip(group.prompt_ids, group.completion_ids, strict=True)):
        nll = -token_logprobs(coordinates.model, prompt, completion).sum()
        parts = torch.autograd.grad(nll, coordinates.parameters())
        g = dict(zip(coordinates.sizes, parts, strict=True))
        dots = [(v.sum(0) / len(v) ** 0.5) @ g[m] for m, v in vectors.items() if len(v)]
        norm = torch.cat([x.flatten() for x in parts]).norm()
        row = next(r for r in run_.samples if (r.arm, r.step, r.sample_id) == ("vanilla", step, i))
        assert row.cos_S_nll == pytest.approx(float(sum(dots) / (len(dots) ** 0.5 * norm)), abs=2e-4)
        weight = float(advantages[i]) / (len(completion) * 8)
        assert row.grad_norm_contrib == pytest.approx(abs(weight) * float(norm), rel=2e-3, abs=1e-7)
        total = {m: total[m] + weight * g[m] for m in total}
    dots = [(v.sum(0) / len(v) ** 0.5) @ total[m] for m, v in vectors.items() if len(v)]
    cosine = float(sum(dots) / (len(dots) ** 0.5 * torch.cat(list(total.values())).norm()))
    recorded = next(r.cos_in for r in run_.steps if (r.arm, r.step) == ("vanilla", step))
    assert recorded == pytest.approx(cosine, abs=2e-4)


def test_config_repeats_a_run(many_arms: Path, replay: Callable[..., Path]) -> None:
    again = replay("replayed-again", "--config", str(many_arms / "config.json"))
    for path in sorted(many_arms.glob("*.gz")):
        assert path.read_bytes() == (again / path.name).read_bytes()
    assert (many_arms / "manifest.json").read_bytes() == (again / "manifest.json").read_bytes()


@pytest.mark.slow
def test_extract_writes_directions_that_replay_accepts_and_other_bases_refuse(
    out: Path, many_arms: Path, replay, quick: list[str], small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["extract", "--name", "v_hack", "--model", small, "--out", str(out), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["held_out"]["num_pairs"] >= 8
    path = Path(card["path"])
    assert load_directions(path).metadata["fingerprint"]["basis"] == "svd"
    used = read_run(replay("given", *quick[:2], "--arm", "vanilla", "--steps", "6", "--v-hack", str(path)))
    assert used.steps == [row for row in read_run(many_arms).steps if row.arm == "vanilla"]
    for key, value in (
        ("intervention.extraction.k", "2"),
        ("objective.loss_type", "dapo"),
    ):
        other = ["replay", *quick[:2], "--name", "x", "--arm", "vanilla", "--v-hack", str(path), "--out", str(out)]
        assert run(cli, [*other, "--set", f"{key}={value}"]) == 2
        assert f"expected extracted with {key} = {value}," in capsys.readouterr().err
    refused = ["replay", *quick[:2], "--name", "x", "--arm", "projected-lora", "--v-hack", str(path), "--out", str(out)]
    assert run(cli, refused) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "basis=lora" in line
    assert "basis=svd" in line, "both fingerprints are in the error"


def test_a_cold_and_a_warm_svd_cache_give_the_same_bits(small: str, tmp_path: Path) -> None:
    """Where a factor lies in memory changes the last bits of matrix products; the cache must not."""
    rollouts = open_pool(BUILTIN / "teacher").steps[0]
    found = []
    for cache_dir in (None, tmp_path, tmp_path):
        policy = load_policy(small)
        coordinates = adapt(policy.model, basis="svd", model_id="small", cache_dir=cache_dir)
        batch = make_batch([r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts], policy.pad_id)
        found.append(sampled(coordinates, batch).gradients)
    for module in found[0]:
        assert torch.equal(found[0][module], found[1][module]), f"{module}: computed and just cached differ"
        assert torch.equal(found[0][module], found[2][module]), f"{module}: computed and cached differ"


def test_a_replay_that_diverges_says_where_it_stopped(
    out: Path, quick: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--name", "diverged-replay", "--arm", "vanilla", "--set", "optimizer.lr=1e30", "--steps", "4", *quick]
    assert run(cli, ["replay", "--out", str(out), *options]) == 0
    assert "STOPPED after 1 steps: grad_norm is nan in step 1" in capsys.readouterr().out
