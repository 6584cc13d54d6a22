"""The main job: records, linearity, one pass for all arms, the two bases, refusals."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapted import adapt, configured, nll_gradient, sampled
from small import LAYERS

from extraction.batch import make_batch
from extraction.library import DirectionLibrary
from extraction.settings import ExtractionSettings
from probe.records.run import read_run
from probe.settings.training import ModelConfig
from probe.step.groups import ReplaySource
from replay_pools.policy.load import load_policy
from replay_pools.pool import BUILTIN, open_pool


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
        g = nll_gradient(coordinates, prompt, completion)
        dots = [(v.sum(0) / len(v) ** 0.5) @ g[m] for m, v in vectors.items() if len(v)]
        norm = torch.cat([*g.values()]).norm()
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
    many_arms: Path, replay, quick: list[str], small: str, probe, refused
) -> None:
    probe("extract", "--name", "v_hack", "--model", small)
    along = (*quick[:2], "--v-hack", "v_hack", "--arm")
    used = read_run(replay("given", *along, "vanilla", "--steps", "6"))
    assert used.steps == [row for row in read_run(many_arms).steps if row.arm == "vanilla"]
    for key, value in (("intervention.extraction.k", "2"), ("objective.loss_type", "dapo")):
        line = refused("replay", "--name", "x", *along, "vanilla", "--set", f"{key}={value}")
        assert f"expected extracted with {key} = {value}," in line
    line = refused("replay", "--name", "x", *along, "projected-lora")
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


def test_a_replay_that_diverges_says_where_it_stopped(quick: list[str], probe) -> None:
    options = ("--name", "diverged-replay", "--arm", "vanilla", "--set", "optimizer.lr=1e30", "--steps", "4", *quick)
    assert "STOPPED after 1 steps: grad_norm is nan in step 1" in probe("replay", *options)[0]


def test_a_replay_of_some_modules_in_a_truncated_basis(replay: Callable[..., Path], quick: list[str]) -> None:
    """Recorded in config and manifest, and additive; v_hack and the gradient have the modules of attention."""
    options = ["--set", "model.svd_rank=16", "--set", 'model.targets=["attention"]']
    cut = read_run(replay("cut", "--steps", "2", *quick, *options))
    assert cut.config["settings"]["model"]["svd_rank"] == 16
    assert cut.manifest["num_modules"] == {"svd": 4 * LAYERS}
    assert cut.manifest["additivity"]["exceeded_steps"] == []
    assert cut.manifest["num_coordinates"] == {"svd": 16 * 4 * LAYERS}
    assert all(row.cos_in is not None for row in cut.steps if row.null_reason is None)
