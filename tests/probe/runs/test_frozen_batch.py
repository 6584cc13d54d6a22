"""probe.runs.evaluations: every number of the frozen probe batch by hand, one completion at a time."""

from pathlib import Path

import pytest
import torch
from adapted import configured, random_directions, token_logprobs

from extraction.adapters.trained import Trained
from extraction.pairs import Pair, builtin_pairs
from probe.runs.evaluations import frozen_batch
from probe.settings.training import ModelConfig
from replay_pools.policy.load import Policy, load_policy


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
