"""probe.step.update: the projected and the routed update as identities over a whole AdamW trajectory; the Updater."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from extraction.adapters.trained import Trained
from probe.settings.arms import get_arm
from probe.settings.training import OptimizerConfig
from probe.step.projection import project_modules, sample_cosines
from probe.step.update import Updater, add


def test_an_update_that_the_gate_leaves_alone_is_untouched():
    """A step along +V (its u points away from the hack) is kept bit for bit, in float32 too: removed is exactly 0."""
    torch.manual_seed(0)
    before = {module: torch.randn(r) for module, r in (("a", 6), ("b", 4), ("c", 3))}
    directions = {m: torch.linalg.qr(torch.randn(len(v), 2))[0].mT for m, v in before.items()}
    directions["c"] = directions["c"][:0]  # all of them fell to the noise floor
    after = add(before, {m: V.sum(0) for m, V in directions.items()})
    update = add(before, after, scale=-1)
    projected = project_modules(update, directions, side="one_sided").gradients
    assert all(torch.equal(projected[m], update[m]) for m in update)


NUM_STEPS = 4


@pytest.fixture(params=["svd", "lora"])
def stepped(request: pytest.FixtureRequest, make_tiny: Callable[..., Trained]) -> Callable[..., tuple]:
    """stepped(arm, target) -> (Updater, directions, [(before, after, returned) of every step]) on fixed gradients."""

    def make(arm: str, target: str = "gradient") -> tuple:
        coordinates = make_tiny(request.param, moved=0.1, **({"rank": 2} if request.param == "lora" else {}))
        generator = torch.Generator().manual_seed(5)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        vectors = {m: torch.linalg.qr(draw(r, 2)).Q.T.contiguous() for m, r in coordinates.sizes.items()}
        updater, rows = Updater(coordinates, get_arm(arm), OptimizerConfig(lr=0.02), 9, target), []
        gate = partial(project_modules, directions=vectors, side="one_sided")
        for _ in range(NUM_STEPS):
            gradients = {m: draw(r) for m, r in coordinates.sizes.items()}
            before = coordinates.values()
            returned = updater.step(gradients, gate)
            rows.append((before, coordinates.values(), returned))
        return updater, vectors, rows

    return make


def removed(update: dict[str, Tensor], vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The hack-ward part relu(V u) V of an update, by hand."""
    return {m: (vectors[m] @ u).clamp_min(0) @ vectors[m] for m, u in update.items()}


@pytest.mark.parametrize("arm", ["projected", "random"])
def test_the_projected_update_is_the_optimizers_without_its_hackward_part(arm, stepped) -> None:
    """Reference: torch.optim.AdamW on plain parameters under clip and cosine, moved by hand after each step: back by
    relu(V u) V. The moments see the gradient as it is.
    """
    _, vectors, rows = stepped(arm, "update")
    generator = torch.Generator().manual_seed(5)
    for r in (v.shape[1] for v in vectors.values()):
        torch.randn(r, 2, generator=generator, dtype=torch.float64)  # those of the directions
    parameters = {m: torch.nn.Parameter(v.clone()) for m, v in rows[0][0].items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.02, weight_decay=0.0)
    hackward = 0.0
    for i, (before, after, returned) in enumerate(rows):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 + torch.cos(torch.tensor(torch.pi * i / 9)).item()) / 2
        start = {m: p.detach().clone() for m, p in parameters.items()}
        for m, parameter in parameters.items():
            parameter.grad = torch.randn(len(start[m]), generator=generator, dtype=torch.float64)
        norm = torch.cat([p.grad for p in parameters.values()]).norm()
        for parameter in parameters.values():
            parameter.grad *= min(1.0, 1 / float(norm))
        optimizer.step()
        update = {m: start[m] - p.detach() for m, p in parameters.items()}
        back = removed(update, vectors)
        hackward += sum(float(part.norm()) for part in back.values())
        with torch.no_grad():
            for m, parameter in parameters.items():
                parameter += back[m]
        for m in after:
            torch.testing.assert_close(before[m], start[m], rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(after[m], parameters[m].detach(), rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(returned[m], before[m] - after[m], rtol=0, atol=0)
        assert float(sample_cosines(returned, vectors).hackward_frac) < 1e-6
    assert hackward > 0.01, "the optimizer never stepped hack-ward: the test shows nothing"


def test_a_projecting_arm_with_a_gated_gradient_just_steps(stepped) -> None:
    """Target `gradient`: what comes in is projected already, and the update is the optimizer's own."""
    assert_same(stepped("projected", "gradient"), stepped("vanilla"))
    assert_same(stepped("vanilla", "update"), stepped("vanilla"))


def assert_same(one: tuple, other: tuple) -> None:
    for mine, theirs in zip(one[2], other[2], strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert all(torch.equal(a[m], b[m]) for m in a)


def test_route_trains_as_vanilla_and_deploys_the_rest(stepped) -> None:
    """Bit-equal coordinates in training; deployed = start - sum of u', and what a step returns is that step's u'."""
    vanilla, route = stepped("vanilla"), stepped("projected-at-deployment")
    updater, vectors, rows = route
    kept = {m: torch.zeros_like(v) for m, v in rows[0][0].items()}
    for (before, after, update), (_, wanted, returned) in zip(vanilla[2], rows, strict=True):
        assert all(torch.equal(after[m], wanted[m]) for m in after), "the quarantine changed what is trained"
        parts = removed(update, vectors)
        for m, part in parts.items():
            torch.testing.assert_close(returned[m], (before[m] - after[m]) - part, rtol=1e-6, atol=1e-9)
            kept[m] += returned[m]
        assert float(sample_cosines(returned, vectors).hackward_frac) < 1e-6
    with updater.deployed():
        deployed = updater.trained.values()
    for m, value in deployed.items():
        torch.testing.assert_close(value, rows[0][0][m] - kept[m], rtol=1e-6, atol=1e-9)
    assert any(not torch.equal(value, rows[-1][1][m]) for m, value in deployed.items()), "nothing is in quarantine"
    with vanilla[0].deployed():
        assert all(torch.equal(v, rows[-1][1][m]) for m, v in vanilla[0].trained.values().items())


def test_deployed_gives_the_policy_in_training_back_after_an_error(stepped) -> None:
    updater, _, rows = stepped("projected-at-deployment")
    with pytest.raises(KeyError), updater.deployed():
        raise KeyError
    assert all(torch.equal(v, rows[-1][1][m]) for m, v in updater.trained.values().items())
