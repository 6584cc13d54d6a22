"""The arms `trusted`: subspaces against the update of the supervised steps, and their projection by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from extraction.adapters.frames import lora_frames
from extraction.adapters.trained import lora_factors
from extraction.pairs import builtin_pairs
from probe.runs.trusted import mean_cca, moved_directions, subspaces, uniform
from probe.settings.arms import get_arm
from probe.step.projection import restrict_modules
from probe.step.step import Measure
from replay_pools.policy.load import load_policy

RANK, K = 4, 3


@pytest.fixture(scope="module")
def found(small: str):
    """{kind: subspaces} of a small model, {module: A}, and its weights before and after."""
    policy = load_policy(small)
    frames, pairs = lora_frames(policy.model, ("all",), rank=RANK, model_id=small), builtin_pairs("run_tests")[:3]
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    made = {kind: subspaces(kind, policy, frames, pairs, K) for kind in ("clean", "hacks")}
    made["haar"] = uniform(made["clean"], 0)
    again = subspaces("clean", policy, frames, pairs, K)
    return made, again, before, policy.model.state_dict()


def test_the_steps_leave_the_model_as_it_was(found) -> None:
    _, _, before, after = found
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_rows_are_orthogonal_with_the_weights_of_the_update(found) -> None:
    """Weights add up to 1; hacks lead elsewhere; uniform subspaces keep the weights; the same steps, the same rows."""
    made, again, _, _ = found
    for module, W in made["clean"].items():
        gram = W.double() @ W.double().T
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), rtol=0, atol=1e-6)
        assert float(gram.diagonal().sum()) == pytest.approx(1, abs=1e-5)
        assert torch.equal(W, again[module])
        uniform = made["haar"][module]
        torch.testing.assert_close(uniform.norm(dim=1), W.norm(dim=1))
        assert not torch.allclose(W, made["hacks"][module])
        assert not torch.allclose(W, uniform)


def test_a_gradient_keeps_its_part_in_the_subspace() -> None:
    """U diag(a) U^T G by hand for d_out = 3, rank = 2; the controls have the norm that the clean subspace leaves."""
    G = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
    clean = {"m": torch.tensor([[0.5**0.5, 0, 0], [0, 0.5**0.5, 0]], dtype=torch.float64)}
    other = {"m": torch.tensor([[0, 0, 1.0]], dtype=torch.float64)}
    vectors = {"m": torch.eye(6, dtype=torch.float64)[:1]}
    kept = restrict_modules({"m": G.flatten()}, vectors, clean)
    assert kept.gradients["m"].tolist() == pytest.approx([0.5, 1, 1.5, 2, 0, 0])
    norm = (0.25 + 1 + 2.25 + 4) ** 0.5
    measure = Measure(condition="x", arm=get_arm("trusted"), vectors=vectors, side="one_sided", onto=other)
    same = replace(measure, onto_dose=clean).projected({"m": G.flatten()})
    assert float(same.gradients["m"].norm()) == pytest.approx(norm)
    assert same.gradients["m"][4:].tolist() == pytest.approx([norm * 5 / 61**0.5, norm * 6 / 61**0.5])
    shrunk = replace(measure, arm=get_arm("trusted-scaled"), onto=clean).projected({"m": G.flatten()})
    torch.testing.assert_close(shrunk.gradients["m"], G.flatten() * norm / G.norm())


@pytest.mark.parametrize("basis", ["svd", "lora"])
def test_moved_directions_are_the_left_singular_vectors_of_the_change(basis: str, make_tiny) -> None:
    """Reference: the SVD of W now minus W at the start, as the model multiplies; the same moves correlate by 1."""
    trained = make_tiny(basis, moved=0.0, **({"rank": 4} if basis == "lora" else {}))
    assert mean_cca(found := moved_directions(trained, 2), found) is None, "nothing has moved"
    torch.manual_seed(0)
    trained.load_values({module: torch.randn_like(value) for module, value in trained.values().items()})
    found = moved_directions(trained, 2)
    for module, rows in found.items():
        layer = trained.layers[module]
        if basis == "svd":
            delta = trained.trainable(module)
            U, Vh = layer.frames()
            change = U @ torch.diag(delta) @ Vh
        else:
            A, B = lora_factors(layer)
            change = B @ A
        U = torch.linalg.svd(change.double(), full_matrices=False)[0][:, :2].T
        np.testing.assert_allclose((rows.double() @ U.T).abs().detach(), np.eye(2), atol=1e-5)
    assert mean_cca(found, found) == pytest.approx(1, abs=1e-5)
    half = {module: torch.stack([rows[0], torch.zeros_like(rows[1])]) for module, rows in found.items()}
    assert mean_cca(found, half) == pytest.approx(0.5, abs=1e-5)
