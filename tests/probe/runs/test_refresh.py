"""Refreshed directions are those of the deployed policy at their step, once, with age and overlap."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import configured, random_directions, token_logprobs
from scipy.linalg import subspace_angles
from torch import Tensor

from extraction.adapters.frames import Frames
from extraction.adapters.trained import Trained
from extraction.directions import Directions, load_directions
from extraction.pairs import load_pairs
from probe.runs.arm_directions import arm_measures, overlap, refreshed_measures
from probe.settings.arms import get_arm
from probe.settings.presets import configure
from probe.settings.training import ModelConfig, OptimizerConfig
from probe.settings.verbs import normaliser
from probe.step.step import Measure
from probe.step.update import Updater
from replay_pools.policy.load import Policy, load_policy

K = 2


def haar(sizes: dict[str, int], k: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {m: torch.linalg.qr(torch.randn(r, k, generator=generator)).Q.T.contiguous() for m, r in sizes.items()}


def test_overlap_is_the_mean_squared_cosine_of_the_principal_angles() -> None:
    """Reference: scipy's principal angles. The same subspace in another basis: 1; orthogonal ones: 0; modules without
    directions on a side are left out; a line within a plane: 1.
    """
    a, b = haar({"x": 9, "y": 5}, 3, 0), haar({"x": 9, "y": 5}, 2, 1)
    angles = [torch.tensor(subspace_angles(a[m].double().T.numpy(), b[m].double().T.numpy())) for m in a]
    assert overlap(a, b) == pytest.approx(sum(float(own.cos().square().mean()) for own in angles) / 2, rel=1e-5)
    turn = haar({"": 3}, 3, 2)[""]
    assert overlap(a, {m: turn @ v for m, v in a.items()}) == pytest.approx(1, rel=1e-6)
    assert overlap(a, a) == pytest.approx(1, rel=1e-6)
    units = torch.eye(6)
    assert overlap({"x": units[:2]}, {"x": units[2:5]}) == 0
    assert overlap({"x": units[:1]}, {"x": units[:2]}) == 1
    assert overlap({"x": units[:2], "y": units[:0]}, {"x": units[:2], "y": units[:2]}) == 1
    assert overlap({"y": units[:0]}, {"y": units[:2]}) is None


@pytest.fixture
def measures(make_tiny: Callable[..., Trained], tmp_path: Path) -> Callable[..., Any]:
    """measures(every, calls): extractions draw Haar directions and append to `calls`."""
    coordinates = make_tiny()
    updater = Updater(coordinates, get_arm("vanilla"), OptimizerConfig(lr=0.1), 9)
    vectors = random_directions(coordinates, K).vectors
    start = Measure(condition="default", arm=get_arm("vanilla"), vectors=vectors, side="one_sided", overshoot=2.0)

    def make(every: int | None, calls: list[int]) -> Any:
        def extract(frames: Frames) -> Directions:
            calls.append(1)
            return random_directions(coordinates, K, len(calls))

        return refreshed_measures(tmp_path, start, extract, updater, every)

    return make


def test_ages_count_the_steps_since_the_extraction(measures) -> None:
    """every 3: extracted at 3 and 6, never at the start; None: never. Everything else of the measure stays."""
    calls: list[int] = []
    mine = measures(3, calls)
    rows = [mine(step)[0] for step in range(8)]
    assert [row.age for row in rows] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert len(calls) == 2
    assert rows[0].overlap == rows[2].overlap == 1
    assert rows[3].overlap == rows[5].overlap == overlap(rows[3].vectors, rows[0].vectors)
    assert rows[3].overlap < 0.9
    assert {(row.condition, row.side, row.overshoot) for row in rows} == {("default", "one_sided", 2.0)}
    never = measures(None, calls)
    assert [never(step)[0].age for step in range(4)] == [0, 1, 2, 3]
    assert never(9)[0].vectors is rows[0].vectors
    assert never(9)[0].overlap == 1
    assert len(calls) == 2


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("organism")


def extracted_by_hand(coordinates: Trained, policy: Policy, pairs: Path) -> dict[str, Tensor]:
    """{module: (n, r)}: w (grad NLL(hack) - grad NLL(clean)) of one pair after the other, by ordinary autograd."""
    rows: dict[str, list[Tensor]] = {m: [] for m in coordinates.sizes}
    for pair in load_pairs(str(pairs)):
        sides = []
        for text in (pair.hack, pair.clean):
            prompt, completion = policy.render(pair.messages)[1], policy.completion_ids(text)
            nll = -token_logprobs(coordinates.model, prompt, completion).sum() / (2 * len(completion))
            sides.append(torch.autograd.grad(nll, coordinates.parameters()))
        for module, hack, clean in zip(rows, *sides, strict=True):
            rows[module].append((hack - clean).double())
    return {m: torch.stack(own) for m, own in rows.items()}


def test_refreshed_directions_are_extracted_at_the_deployed_coordinates(policy, few_pairs, tmp_path, out) -> None:
    """Reference: pair gradients one at a time at coordinates - quarantine, whose k largest singular values |D v| the
    refreshed directions must have, hack-ward by the vote; neither those of the policy in training nor the cached ones.
    """
    coordinates = configured(policy, "svd", ModelConfig(), out / "cache")
    options = {"pairs": few_pairs[1], "k": K, "drop_bottom_frac": 0.0}
    options = {f"intervention.extraction.{key}": value for key, value in options.items()}
    config = configure("train", options=options | {"intervention.arms": ["projected-at-deployment"]})
    frames = {"svd": coordinates.start}
    arm, weights = get_arm("projected-at-deployment"), normaliser(config.objective)
    (start,), library = arm_measures(config, policy, frames, tmp_path / "cache", lambda text: None)
    cached = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert cached, "the start is extracted through the cache"
    updater = Updater(coordinates, arm, OptimizerConfig(lr=0.1), 9)
    generator = torch.Generator().manual_seed(0)
    moves = [{m: 0.3 * torch.randn(r, generator=generator) for m, r in coordinates.sizes.items()} for _ in range(2)]
    coordinates.load_values(moves[0])
    state = updater.state_dict()
    updater.load_state_dict(state | {"parked": moves[1]})

    mine = refreshed_measures(
        tmp_path / "run", start, lambda frames: library("svd", weights).at(frames).v_hack, updater, 2
    )
    (found,) = mine(2)
    assert all(torch.equal(v, moves[0][m]) for m, v in coordinates.values().items()), "the refresh moved the policy"
    stored = load_directions(tmp_path / "run" / "directions" / "step_000002.safetensors")
    assert stored.metadata["adapter_at_zero"] is False
    with coordinates.at({m: v - moves[1][m] for m, v in moves[0].items()}):
        deployed = extracted_by_hand(coordinates, policy, Path(few_pairs[1]))
    for module, D in deployed.items():
        V = found.vectors[module].double()
        projections = D @ V.T
        ratios = projections.norm(dim=0)[:, None] / torch.linalg.svdvals(D)[:K]  # a tied vote drops one of the k
        assert ((ratios - 1).abs().amin(1) < 2e-3).all(), f"{module}: no singular direction of the deployed policy"
        torch.testing.assert_close(V @ V.T, torch.eye(len(V)).double(), rtol=0, atol=1e-5)
        assert (projections.sign().sum(0) > 0).all(), f"{module}: a direction points away from the hack"
    assert found.overlap is not None
    assert found.overlap < 0.99, "the directions of the start"
    assert {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()} == cached
