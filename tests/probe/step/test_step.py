"""train_step: any loss, whole and sample by sample, against plain autograd of the loss as it is written; its passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from adapted import members_of, move, padded_logprobs
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from extraction.adapters.trained import Trained
from extraction.batch import Batch, make_batch
from probe.settings.arms import Arm, get_arm
from probe.settings.loss import LossSettings
from probe.step.bases import Bases, Gradients
from probe.step.groups import Group, RolloutKey
from probe.step.projection import Projection, removed_norm
from probe.step.reference import References
from probe.step.step import FLATNESS, Measure, StepResult, step_only, train_step
from probe.step.update import quarantined
from replay_pools.base.errors import InputError

PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7], [3], [7, 7], [9, 8, 7]]
COMPLETIONS = [[10, 11, 12, 13], [14, 15], [16, 17, 18], [11, 3, 20], [12], [19, 6, 5, 4, 21]]
# Ids that the policy did not sample: in the middle, at the start, at the end. One of them is a planning token.
MASKS = [[True, False, False, True], None, [False, True, True], None, None, [True, True, False, True, False]]
REWARDS = [3.5, 0.5, 0.0, 0.5, 3.0, 0.5]
NUM = len(PROMPTS)


def scored(coordinates: Trained, batch: Batch) -> Tensor:
    return padded_logprobs(coordinates.model, batch)


@pytest.fixture(scope="module", params=["svd", "lora"])
def policy(request: pytest.FixtureRequest, make_tiny: Callable[..., Trained]) -> tuple[Trained, References]:
    """A policy that has moved twice since the references were made, and the EMA once in between."""
    coordinates = make_tiny(request.param, moved=0.0, **({"rank": 2} if request.param == "lora" else {}))
    references = References(coordinates, ema_decay=0.5)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        move(coordinates, generator)
        references.update()
    return coordinates, references


@pytest.fixture(scope="module")
def batch() -> Batch:
    return make_batch(PROMPTS, COMPLETIONS, 0, MASKS)


@pytest.fixture(scope="module")
def groups(policy: tuple[Trained, References], batch: Batch) -> list[Group]:
    """Two groups of three; the recorded log-probabilities are the policy's, off by up to a nat, and noise in holes."""
    with torch.no_grad():
        current = scored(policy[0], batch)
    noise = torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(1)).double() * 2 - 1
    recorded = [
        row[len(prompt) : len(prompt) + len(completion)].tolist()
        for row, prompt, completion in zip(current + noise, PROMPTS, COMPLETIONS)
    ]
    return [make_group(recorded, half) for half in (slice(0, 3), slice(3, 6))]


def make_group(recorded: Sequence[list[float] | None], part: slice) -> Group:
    return Group(
        step=0, prompt_ids=tuple(PROMPTS[part]), completion_ids=tuple(COMPLETIONS[part]), rewards=tuple(REWARDS[part]),
        completion_masks=tuple(MASKS[part]), sampling_logprobs=tuple(recorded[part]), problem_id="p",
        keys=tuple(RolloutKey("rollouts", part.start, i) for i in range(3)), mixed_prompt=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(Bases):
    """Bases that note every total gradient of the step."""

    totals: list[dict[str, Tensor]]

    def total(self, scale: Tensor, gradients: Gradients) -> Gradients:
        found = Bases.total(self, scale, gradients)
        self.totals.append(dict(found[next(iter(self.frames))]))
        return found


def directions(coordinates: Trained) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        m: torch.linalg.qr(torch.randn(r, 2, generator=generator, dtype=torch.float64)).Q.T.contiguous()
        for m, r in coordinates.sizes.items()
    }


def recorded(groups: Sequence[Group], batch: Batch) -> Tensor:
    """(G, T) of the recorded log-probabilities, 0 off the completion mask."""
    found = torch.zeros(batch.ids.shape, dtype=torch.float64)
    for i, row in enumerate(row for group in groups for row in group.sampling_logprobs):
        found[i, len(PROMPTS[i]) : len(PROMPTS[i]) + len(row)] = torch.tensor(row).double()
    return found * batch.completion_mask


def planned(groups: Sequence[Group]) -> list[list[bool]]:
    return [[token % 5 == 0 for token in ids] for group in groups for ids in group.completion_ids]


class Seen:
    """An updater that steps nothing and keeps what it is given."""

    gradient: dict[str, Tensor]
    quarantine: dict[str, Tensor] | None = None

    def step(self, gradients, gate):
        self.gradient = dict(gradients)
        return gradients


def step(
    policy: tuple[Trained, References], groups: Sequence[Group], conditions: dict[str, LossSettings]
) -> tuple[StepResult, list[dict[str, Tensor]]]:
    """(result, total gradient of every condition in order of its pass), along fixed random directions."""
    coordinates, references = policy
    totals: list[dict[str, Tensor]] = []
    vectors = directions(coordinates)
    arm = get_arm("vanilla" if coordinates.basis == "svd" else "projected-lora")
    result = train_step(
        Recorded(**members_of(coordinates), totals=totals),
        groups,
        [Measure(condition=name, arm=arm, vectors=vectors, side="one_sided") for name in conditions],
        conditions=conditions,
        planning=planned(groups),
        pad_id=0,
        references=references,
    )
    return result, totals


def both_steps(policy, groups, arm: Arm, objective: LossSettings, quarantine=None, between=lambda: None):
    """(result of train_step, the gradient that it steps along, that of step_only), along fixed random directions."""
    coordinates, references = policy
    measure = Measure(condition="x", arm=arm, vectors=directions(coordinates), side="one_sided")
    bases, whole, alone = Bases(**members_of(coordinates)), Seen(), Seen()
    whole.quarantine = alone.quarantine = quarantine
    shared = {"planning": planned(groups), "pad_id": 0, "references": references}
    result = train_step(bases, groups, [measure], conditions={"x": objective}, updater=whole, **shared)
    between()
    assert step_only(bases, groups, measure, objective, updater=alone, **shared) is None
    return result, flat(whole.gradient, coordinates), flat(alone.gradient, coordinates)


def written_out(own: LossSettings, logp: Tensor, old: Tensor, ref: Tensor, batch: Batch) -> list[Tensor]:
    """L_i of every sample as METHOD writes it, differentiable in logp; nothing of ours is called."""
    lengths = batch.completion_mask.sum(1)
    divisors = {"grpo": lengths * NUM, "dapo": lengths.sum().expand(NUM)}
    divisors["dr_grpo"] = torch.full((NUM,), NUM * (own.max_completion_length or 0))
    losses = []
    for i, mask in enumerate(batch.completion_mask):
        mine = torch.tensor(REWARDS[:3] if i < 3 else REWARDS[3:]).double()
        A = REWARDS[i] - mine.mean()
        if own.scale_rewards == "group":
            A = A / (mine.std(correction=1) + own.advantage_eps)
        lp = logp[i][mask]
        h = -lp.detach()
        credit = (1 + own.gtpo_beta * (h / h.mean() - 1)).clamp_min(0)
        credit = credit * (1 + own.hicra_alpha * torch.sign(A) * (batch.ids[i][mask] % 5 == 0))
        a = A * credit
        if own.advantage_clip is not None:
            a = a.clamp(-own.advantage_clip, own.advantage_clip)
        log_ratio = lp - (old[i][mask] if own.old_logprobs == "recorded" else lp.detach())
        ratio = log_ratio.exp()
        gain = ratio * a
        if own.epsilon is not None:
            gain = torch.min(gain, ratio.clamp(1 - own.epsilon, 1 + (own.epsilon_high or own.epsilon)) * a)
        d = ref[i][mask] - lp
        k = d.exp() - d - 1
        bonus = -lp.detach() * lp  # its mean gradient is that of the entropy's negative, with the sign of a loss
        losses.append((-gain + own.beta * k - own.entropy_coef * bonus).sum() / divisors[own.loss_type][i])
    return losses


ALL = {"old_logprobs": "recorded", "beta": 0.3, "entropy_coef": 0.05, "gtpo_beta": 0.7, "advantage_clip": 2.0}
OBJECTIVES = {
    "base": LossSettings(**ALL, reference="base", epsilon_high=0.3),
    "ema": LossSettings(**ALL, reference="ema", loss_type="dapo"),
    "narrow ema": LossSettings(**ALL, reference="ema", epsilon=0.02, hicra_alpha=1.0),
    "recorded": LossSettings(
        **ALL, reference="recorded", epsilon=0.05, scale_rewards="group", loss_type="dr_grpo", max_completion_length=9
    ),
    "not clipped": LossSettings(old_logprobs="recorded", epsilon=None, loss_type="dapo"),
    "ratio 1": LossSettings(reference="ema", beta=0.5, hicra_alpha=1.0, loss_type="dapo"),
    "entropy alone": LossSettings(entropy_coef=1.0),
    "credit alone": LossSettings(gtpo_beta=2.0, advantage_clip=1.0),
    "plain": LossSettings(),
}


def value_out(own: LossSettings, logp: Tensor, old: Tensor, ref: Tensor, batch: Batch) -> Tensor:
    """The value of L as METHOD writes it: at ratio 1 its first term is -A logp, not the -A that autograd needs, and the
    entropy is -logp, not what has its gradient.
    """
    total = sum(written_out(replace(own, entropy_coef=0.0), logp, old, ref, batch))
    if own.old_logprobs == "current":
        first = sum(written_out(replace(own, entropy_coef=0.0, beta=0.0), logp, old, ref, batch))
        free = logp.detach().requires_grad_()
        of_free = sum(written_out(replace(own, entropy_coef=0.0, beta=0.0), free, old, ref, batch))
        (minus_wA,) = torch.autograd.grad(of_free, free)  # d(-w A r)/dlogp at r = 1
        total = total - first + (minus_wA * logp)[batch.completion_mask].sum()
    lengths = batch.completion_mask.sum(1)
    divisor = {"grpo": lengths * NUM, "dapo": lengths.sum(), "dr_grpo": torch.tensor(9 * NUM)}
    return total + own.entropy_coef * (logp.sum(1) / divisor[own.loss_type]).sum()


def flat(gradient: dict[str, Tensor], coordinates: Trained) -> Tensor:
    return torch.cat([gradient[module] for module in coordinates.sizes])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_of_a_step_is_autograd_of_the_written_loss(name: str, policy, groups, batch: Batch) -> None:
    """Reference: sum_i L_i, and every L_i alone, by torch.autograd through an ordinary padded forward of the adapted
    model; the reference policies are scored by `disable_adapter()`, or with the EMA's coordinates loaded. The recorded
    kl/* and ratio/* are those of its terms.
    """
    own, (coordinates, references) = OBJECTIVES[name], policy
    result, (total,) = step(policy, groups, {"x": own})
    old = recorded(groups, batch)
    with torch.no_grad():
        with coordinates.model.disable_adapter():
            base = scored(coordinates, batch)
        with coordinates.at(references.state_dict()["ema"]):
            ema = scored(coordinates, batch)
    ref = {"base": base, "ema": ema, "recorded": old, None: base}[own.reference]
    losses = written_out(own, scored(coordinates, batch), old, ref, batch)
    parameters = coordinates.parameters()
    alone = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    wanted = [torch.cat([part.flatten() for part in parts]) for parts in alone]
    torch.testing.assert_close(flat(total, coordinates), sum(wanted), rtol=1e-8, atol=1e-12)
    weighting, (arm,) = result.weightings["x"], result.arms
    unit = Bases(**members_of(coordinates)).run(batch, weighting.token_weights).gradients[coordinates.basis]
    for i, gradient in enumerate(wanted):
        mine = weighting.scale[i] * flat({m: g[i] for m, g in unit.items()}, coordinates)
        torch.testing.assert_close(mine, gradient, rtol=1e-8, atol=1e-12, msg=lambda text, i=i: f"sample {i}: {text}")
        assert float(arm.contribution_norms[i]) == pytest.approx(float(gradient.norm()), rel=1e-8, abs=1e-12)
    assert float(arm.projection.before.norm) == pytest.approx(float(sum(wanted).norm()), rel=1e-8)
    value = value_out(own, scored(coordinates, batch), old, ref, batch)
    assert weighting.loss == pytest.approx(value.item(), rel=1e-9)
    if not own.entropy_coef:
        of_value = torch.cat([part.flatten() for part in torch.autograd.grad(value, parameters)])
        torch.testing.assert_close(of_value, sum(wanted), rtol=1e-8, atol=1e-12)
    mask, current = batch.completion_mask, scored(coordinates, batch).detach()
    for name, against in (("mean", ref), ("max", ref), ("from_base", base)):
        d = (against - current)[mask]
        k = d.exp() - d - 1
        if own.reference is not None and (name != "from_base" or own.reference == "ema"):
            assert weighting.kl[name] == pytest.approx(float(k.max() if name == "max" else k.mean()), rel=1e-9)
    if own.old_logprobs == "recorded":
        ratio = (current - old)[mask].exp()
        expected = {"mean": float(ratio.mean()), "max": float(ratio.max())}
        assert {name: weighting.ratio[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    if own.old_logprobs == "recorded" and own.epsilon is not None:
        clipped = sum(weighting.ratio[f"frac_clip_{side}"] for side in ("low", "high"))
        assert 0 < clipped < 1, "the example clips nothing, or everything"


def test_the_size_of_the_advantages_is_that_of_the_tokens(policy, groups, batch: Batch) -> None:
    """Mean |A| over completion tokens: long completions count more; after credit, whose mean is 1, and the cap."""
    A = torch.tensor(REWARDS).double() - torch.tensor(REWARDS).double().view(2, 3).mean(1).repeat_interleave(3)
    lengths = batch.completion_mask.sum(1)
    conditions = {cap: LossSettings(advantage_clip=float(cap)) for cap in ("9", "1")}
    conditions["credit"] = LossSettings(gtpo_beta=2.0, advantage_clip=1.0)
    weightings = step(policy, groups, conditions)[0].weightings
    for cap in ("9", "1"):
        expected = float((A.abs().clamp(max=float(cap)) * lengths).sum() / lengths.sum())
        assert weightings[cap].abs_advantage == pytest.approx(expected)
    credited = weightings["credit"]
    assert credited.abs_advantage == pytest.approx(float(credited.token_advantages.clamp(-1, 1).abs().mean()))


@pytest.mark.parametrize("name", ["narrow ema", "recorded", "credit alone", "plain"])
def test_a_step_alone_is_the_step(name: str, policy, groups, calls: list[str]) -> None:
    """The same gate on the same gradient, without a second pass: no more than scores beside one backward."""
    arm = get_arm("projected" if policy[0].basis == "svd" else "projected-lora")
    result, expected, stepped = both_steps(policy, groups, arm, OBJECTIVES[name], between=calls.clear)
    assert calls.count("grad") == 1
    torch.testing.assert_close(stepped, expected, rtol=1e-8, atol=1e-12)
    before = result.arms[0].projection.before.norm
    assert 0 < expected.norm() < before, "nothing was stepped, or the gate removes nothing"


@pytest.fixture
def calls(policy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every forward of the model, and whether it is to be differentiated."""
    found: list[str] = []
    embeddings = policy[0].model.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda *_: found.append("grad" if torch.is_grad_enabled() else "score"))
    yield found
    handle.remove()


KL = LossSettings(old_logprobs="recorded", reference="base", beta=0.1)
PASSES = {
    "advantages alone": ({"x": LossSettings()}, (1, 0)),
    "advantages many": ({"x": LossSettings(), "y": LossSettings(scale_rewards="group", loss_type="dapo")}, (1, 0)),
    "a KL that is only measured": ({"x": LossSettings(reference="base")}, (1, 1)),
    "a ratio": ({"x": LossSettings(old_logprobs="recorded")}, (2, 0)),
    "everything": ({"x": LossSettings(**ALL, reference="base")}, (2, 1)),
    "the EMA, and the base beside it": ({"x": LossSettings(reference="ema", beta=0.1)}, (2, 2)),
    "the same W": ({"a": LossSettings(), "x": KL, "y": replace(KL, loss_type="dapo")}, (2, 1)),
    "another W": ({"x": KL, "y": replace(KL, beta=0.2)}, (3, 1)),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_a_step_costs(name: str, policy, groups, calls: list[str]) -> None:
    """(forwards with a backward, forwards without): one and none for advantages, one more for each different W, one
    without a backward for each reference that is elsewhere.
    """
    conditions, wanted = PASSES[name]
    step(policy, groups, conditions)
    assert (calls.count("grad"), calls.count("score")) == wanted


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gated(name: str, gradient: dict[str, Tensor], seed: int, **options) -> tuple[Projection, dict[str, Tensor]]:
    """What an arm leaves of a gradient along two random directions a module, and these."""
    V = {m: torch.linalg.qr(drawn(len(g), 2, seed=seed))[0].T for m, g in gradient.items()}
    return Measure(condition="x", arm=get_arm(name), vectors=V, side="one_sided", **options).projected(gradient), V


GRADIENT = {"a": drawn(6, seed=1), "b": drawn(5, seed=2)}


@pytest.mark.parametrize("overshoot", [0.5, 1.0])
def test_a_dosed_arm_removes_as_much_as_v_hack_would(overshoot: float) -> None:
    """Directions that meet nothing of a gradient remove nothing, whatever the dose."""
    _, v_hack = gated("projected", GRADIENT, 3)
    wanted = removed_norm(GRADIENT, v_hack, side="one_sided", overshoot=overshoot)
    found, haar = gated("random-dosed", GRADIENT, 4, dose=v_hack, overshoot=overshoot)
    removed = torch.cat([GRADIENT[m] - found.gradients[m] for m in GRADIENT])
    torch.testing.assert_close(removed.norm(), wanted)
    away = {m: -V.sum(0) for m, V in haar.items()}
    found, _ = gated("random-dosed", away, 4, dose=v_hack, overshoot=overshoot)
    assert torch.equal(found.gradients["a"], away["a"])


def test_a_scaled_arm_has_the_gates_size_and_the_gradients_direction() -> None:
    """A gradient that is zero, or that the gate leaves alone, stays as it is."""
    (scaled, _), (projected, _) = (gated(name, GRADIENT, 3) for name in ("scaled", "projected"))
    sizes = [torch.cat([*one.gradients.values()]).norm() for one in (scaled, projected)]
    torch.testing.assert_close(sizes[0], sizes[1])
    assert sizes[0] < scaled.before.norm
    torch.testing.assert_close(scaled.gradients["a"] / GRADIENT["a"], (sizes[0] / scaled.before.norm).expand(6))
    torch.testing.assert_close(scaled.after.cos, projected.before.cos)
    untouched, _ = gated("scaled", {m: torch.zeros_like(g) for m, g in GRADIENT.items()}, 3)
    assert not untouched.gradients["a"].any()
    assert untouched.frac_fired == 0


def test_a_rollout_without_recorded_log_probabilities_is_refused(policy, groups) -> None:
    """One of six has none: neither a ratio nor a KL against them can be had, and nothing stands in for them."""
    recorded = [row for group in groups for row in group.sampling_logprobs]
    holey = [make_group([*recorded[:4], None, recorded[5]], half) for half in (slice(0, 3), slice(3, 6))]
    for own in (LossSettings(old_logprobs="recorded"), LossSettings(reference="recorded")):
        with pytest.raises(InputError, match="found a rollout without"):
            step(policy, holey, {"x": own})
    step(policy, holey, {"x": LossSettings(reference="base")})


def test_a_number_that_is_not_finite_is_named_and_nothing_is_stepped(policy, groups) -> None:
    """A ratio of e^800 against a token that was recorded as all but impossible."""
    recorded = [row for group in groups for row in group.sampling_logprobs]
    wild = [make_group([[-800.0] * 4, *recorded[1:]], half) for half in (slice(0, 3), slice(3, 6))]
    assert step(policy, groups, {"x": LossSettings(old_logprobs="recorded")})[0].arms[0].broken is None
    result, _ = step(policy, wild, {"x": LossSettings(old_logprobs="recorded", epsilon=None)})
    assert result.arms[0].broken in ("ratio/mean is inf", "ratio/max is inf")


def test_flagged_rollouts_move_the_quarantine_alone(policy, groups, batch: Batch) -> None:
    """By hand from per-sample gradients: one half of LoRA's columns sees all rollouts, the other the unflagged ones."""
    coordinates, _ = policy
    if coordinates.basis != "lora":
        return
    flags = [True, False, False, False, False, True]
    flagged = [replace(group, flagged=tuple(flags[3 * i : 3 * i + 3])) for i, group in enumerate(groups)]
    quarantine = quarantined(coordinates)
    result, *stepped = both_steps(policy, flagged, get_arm("quarantine"), OBJECTIVES["narrow ema"], quarantine)
    weighting = result.weightings["x"]
    unit = Bases(**members_of(coordinates)).run(batch, weighting.token_weights).gradients["lora"]
    parts = []
    for g in (unit[module] for module in coordinates.sizes):
        each = weighting.scale[:, None] * g
        kept = each[[not flag for flag in flags]].sum(0).view(-1, 2)
        parts.append(torch.stack([kept[:, 0], each.sum(0).view(-1, 2)[:, 1]], 1).flatten())
        assert not torch.allclose(parts[-1], each.sum(0)), "the flags change nothing"
    for gradient in stepped:
        torch.testing.assert_close(gradient, torch.cat(parts), rtol=1e-8, atol=1e-12)


def test_flat_adds_the_gradient_of_half_the_squared_norm(policy, groups, batch: Batch) -> None:
    """Reference: g + FLATNESS H g of -sum W logp, differentiated twice through the padded forward."""
    coordinates, _ = policy
    arm = replace(get_arm("flat"), basis=coordinates.basis)
    result, *stepped = both_steps(policy, groups, arm, OBJECTIVES["plain"])
    parameters = coordinates.parameters()
    with sdpa_kernel(SDPBackend.MATH):  # the other kernels cannot be differentiated twice
        loss = -(result.weightings["x"].scale[:, None] * scored(coordinates, batch)).sum()
        g = torch.autograd.grad(loss, parameters, create_graph=True)
    Hg = torch.autograd.grad(sum(part.square().sum() for part in g) / 2, parameters)
    added = FLATNESS * torch.cat([part.flatten() for part in Hg])
    plain = torch.cat([part.flatten() for part in g]).detach()
    for gradient in stepped:
        assert (gradient - plain - added).norm() < 0.02 * added.norm()
