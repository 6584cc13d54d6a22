"""probe.attach on models without our adapter: plain ones, full fine-tunes, peft's LoRA as it comes, in float64."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from adapted import adapt, grads, random_directions
from peft import IA3Config, LoraConfig, PeftConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import probe
from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.trained import Trained
from extraction.directions import Directions
from replay_pools.base.errors import InputError
from replay_pools.policy.adapters import quiet_peft
from replay_pools.policy.load import load_policy

BASES = {"svd": {}, "lora": {"rank": 3, "seed": 2}}
LENGTHS = (12, 7)  # of the two samples of a batch


def organism(dtype: str = "float64") -> nn.Module:
    return load_policy("organism", dtype=dtype).model


def whole() -> nn.Module:
    return organism().requires_grad_(True)


def trained_in(part: str) -> nn.Module:
    """The parameters with `part` in their names are trained."""
    model = organism()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name)
    return model


norms_alone = partial(trained_in, "norm")  # frozen Linears, below and above something trained
last_norm = partial(trained_in, "model.norm.weight")  # has its gradient before any Linear of the directions
half_trained = partial(trained_in, ".1.")


def adapted(config: type[PeftConfig] = LoraConfig, **options) -> nn.Module:
    with quiet_peft(), torch.random.fork_rng():
        torch.manual_seed(0)
        return get_peft_model(organism(), config(task_type="CAUSAL_LM", **options)).double()


stock_lora = adapted
lora_of_all = partial(adapted, target_modules="all-linear", r=4, lora_alpha=8)
ia3 = partial(adapted, IA3Config)


def loss_of(model: nn.Module, turn: int = 0, samples: slice = slice(None)) -> Tensor:
    """A sum over samples, right-padded, so that those of micro-batches add up."""
    ids = torch.randint(5, 60, (2, max(LENGTHS)), generator=torch.Generator().manual_seed(turn))
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    logits = model(input_ids=ids[samples], attention_mask=mask[samples].long()).logits
    loss = nn.functional.cross_entropy(logits[:, :-1].mT, ids[samples][:, 1:], reduction="none")
    return (loss * mask[samples][:, 1:]).sum()


def optimizer_of(model: nn.Module, make=torch.optim.SGD, lr=1e-3, **options) -> torch.optim.Optimizer:
    return make([p for p in model.parameters() if p.requires_grad], lr=lr, **options)


@pytest.fixture(scope="module")
def cache(out: Path) -> Path:
    return out / "cache" / "svd"


@pytest.fixture(scope="module", params=BASES)
def basis(request: pytest.FixtureRequest, cache: Path) -> tuple[Directions, dict[str, Tensor], Trained]:
    """Two random directions a module, the gradients of turn 0 of the basis's adapter at zero, and that adapter."""
    options = BASES[request.param] or {"cache_dir": cache}
    coordinates = adapt(organism(), basis=request.param, model_id="organism", **options)
    loss_of(coordinates.model).backward()
    return random_directions(coordinates, seed=3), grads(coordinates), coordinates


# Of what does not depend on the frames; gradients, updates and projections are tested in both bases.
IN_SVD = pytest.mark.parametrize("basis", ["svd"], indirect=True)


class Watched:
    """A model with a probe; `gradients` are those that the probe would measure now."""

    def __init__(self, model: nn.Module, directions: Directions, cache: Path) -> None:
        self.optimizer = optimizer_of(model)
        self.measured = probe.attach(self.optimizer, directions, model=model, cache_dir=cache)._measured

    def gradients(self) -> dict[str, Tensor]:
        return self.measured.gradients()


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], factor: float = 1.0) -> None:
    assert list(found) == list(expected)
    for module, gradient in expected.items():
        assert (found[module] - factor * gradient).abs().max() <= 1e-10 * max(1, gradient.abs().max()), module


@pytest.mark.parametrize("make", [whole, norms_alone, lora_of_all])
def test_every_model_has_the_gradient_of_the_adapter_at_zero(basis, cache: Path, make) -> None:
    directions, expected, _ = basis
    model = make()
    watched = Watched(model, directions, cache)
    loss_of(model).backward()
    assert_equal(watched.gradients(), expected)


@IN_SVD
def test_what_is_not_differentiated_is_not_measured(basis, cache: Path) -> None:
    """Generation, a reference without adapter, a forward whose loss is dropped, gradients that go to no `.grad`."""
    directions, expected, _ = basis
    model = stock_lora()
    watched = Watched(model, directions, cache)
    with torch.no_grad():
        model.generate(input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False)
        with model.disable_adapter():
            loss_of(model, turn=1)
    with torch.inference_mode():
        loss_of(model, turn=1)
    loss_of(model, turn=2)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.autograd.grad(loss_of(model, turn=3), trained)
    loss_of(model).backward()
    torch.autograd.grad(loss_of(model, turn=3), trained)
    assert_equal(watched.gradients(), expected)


@IN_SVD
@pytest.mark.parametrize(("make", "to_none"), [(stock_lora, True), (last_norm, False)])
def test_sums_live_as_long_as_grad_does(basis, cache: Path, make, to_none: bool) -> None:
    """Zeroed after a step, or kept where the loop keeps `.grad`; a loss between forward and zero_grad is none of it."""
    directions, expected, _ = basis
    model = make()
    watched = Watched(model, directions, cache)
    watched.optimizer.param_groups[0]["lr"] = 0.0
    loss_of(model, turn=1).backward()
    watched.optimizer.step()
    loss = loss_of(model)
    watched.optimizer.zero_grad(set_to_none=to_none)
    loss.backward()
    assert_equal(watched.gradients(), expected)
    watched.optimizer.step()
    loss_of(model).backward()
    assert_equal(watched.gradients(), expected, factor=2)
    # Steps that were skipped, as a loss scaler skips one that overflowed, and then micro-batches.
    for turn in (1, 2):
        watched.optimizer.zero_grad(set_to_none=to_none)
        loss_of(model, turn=turn).backward()
    watched.optimizer.zero_grad(set_to_none=to_none)
    for samples in (slice(0, 1), slice(1, 2)):
        loss_of(model, samples=samples).backward()
    assert_equal(watched.gradients(), expected)


@IN_SVD
@pytest.mark.parametrize("make", [whole, stock_lora])
def test_measuring_changes_nothing(basis, cache: Path, make) -> None:
    ends = []
    for is_watched in (False, True):
        model = make()
        optimizer = optimizer_of(model, torch.optim.AdamW)
        if is_watched:
            attached = probe.attach(optimizer, basis[0], model=model, cache_dir=cache)
        for turn in range(2):
            loss_of(model, turn).backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    assert len(attached.records) == 2
    num_watched = num_hooks(model)
    attached.detach()
    assert num_watched - num_hooks(model) == (0 if make is whole else len(basis[0].vectors))


def num_hooks(model: nn.Module) -> int:
    return sum(len(layer._forward_hooks) + len(layer._forward_pre_hooks) for layer in model.modules())


def dense_coordinates(change: Tensor, module: str, coordinates: Trained) -> Tensor:
    """Trained of a change of weight (d_out, d_in), by the frames that our own adapter holds."""
    layer = coordinates.layers[module]
    if isinstance(layer, LoraLayer):
        return (layer.scaling["default"] * change @ layer.lora_A["default"].weight.detach().T).flatten()
    assert isinstance(layer, DeltaSLayer)
    U, Vh = layer.frames()
    return torch.diagonal(U.T @ change @ Vh.T)


@pytest.mark.parametrize(
    ("make", "frozen_a", "side"),
    [
        (whole, False, "one_sided"),
        pytest.param(half_trained, False, "two_sided", marks=pytest.mark.slow),
        (lora_of_all, False, "two_sided"),
        pytest.param(lora_of_all, True, "one_sided", marks=pytest.mark.slow),
    ],
)
def test_a_gated_step_has_no_hackward_component(basis, cache: Path, make, frozen_a: bool, side) -> None:
    """V c(dW) of a descent step, dW = s (B dA + dB A) dense, is what the side says: min(c, 0) or 0."""
    directions, _, coordinates = basis
    model = make()
    noise = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=noise)
            parameter.requires_grad_(not (frozen_a and "lora_A" in name))
    optimizer = optimizer_of(model, lr=0.0)
    components: list[dict[str, Tensor]] = [{}, {}]
    with probe.attach(optimizer, directions, model=model, cache_dir=cache, project=True, side=side) as attached:
        loss_of(model).backward()
        for part in components:
            for module, V in directions.vectors.items():
                part[module] = V.double() @ dense_coordinates(step_of(model, module), module, coordinates)
            optimizer.step()
            if part is components[0]:
                gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    (before, after), (first, second) = components, attached.records
    law = {"one_sided": lambda c: c.clamp(max=0), "two_sided": torch.zeros_like}[side]
    scale = max(float(c.abs().max()) for c in before.values())
    assert scale > 1e-3
    for module, c in before.items():
        assert (after[module] - law(c)).abs().max() <= 1e-6 * scale, module
    assert first.projected
    assert first.hackward_frac_out == pytest.approx(0, abs=1e-6)
    # The smallest change: what has been gated stays as it is.
    again = [p.grad for p in model.parameters() if p.grad is not None]
    assert all((one - other).abs().max() <= 1e-6 * scale for one, other in zip(gradients, again, strict=True))
    assert second.cos_in == pytest.approx(first.cos_out, abs=1e-6)


def step_of(model: nn.Module, module: str) -> Tensor:
    """The change of W, to the first order, at a step of -1 along `.grad`, turned round; dense."""
    layer = (model.get_base_model() if hasattr(model, "get_base_model") else model).get_submodule(module)
    if not isinstance(layer, LoraLayer):
        return torch.zeros_like(layer.weight) if layer.weight.grad is None else layer.weight.grad
    A, B = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    G_A, G_B = (torch.zeros_like(p) if p.grad is None else p.grad for p in (A, B))
    return layer.scaling["default"] * (B @ G_A + G_B @ A).detach()


@IN_SVD
@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_scaler_is_divided_out(basis, cache: Path, fused: bool) -> None:
    """Taps see gradients before `unscale_`; a step that the scaler skips leaves nothing behind."""
    directions, expected, _ = basis
    model = stock_lora()
    optimizer = optimizer_of(model, torch.optim.AdamW, lr=0.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    options = {"cache_dir": cache, "scaler": scaler}
    with probe.attach(optimizer, directions, model=model, **options) as attached:
        for factor in (1.0,) if fused else (torch.inf, 1.0):
            scaler.scale(factor * loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    (record,) = attached.records
    assert record.grad_norm == pytest.approx(float(torch.cat(list(expected.values())).norm()), rel=1e-6)


def test_float16_without_its_scaler_is_refused(cache: Path) -> None:
    model = load_policy("organism").model
    with quiet_peft():
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))
    directions = svd_directions(cache, "float32")
    with probe.attach(optimizer_of(model), directions, model=model, cache_dir=cache):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(input_ids=torch.arange(5, 15)[None], labels=torch.arange(5, 15)[None]).loss
        with pytest.raises(InputError, match="scaler="):
            loss.backward()


def svd_directions(cache: Path, dtype: str = "float64", **options) -> Directions:
    coordinates = adapt(organism(dtype), basis="svd", model_id="organism", cache_dir=cache, **options)
    return random_directions(coordinates, k=1, seed=1)


@pytest.mark.parametrize("options", [{"rank": 20, "targets": ["o_proj", "up_proj"]}, {"rank": 120}])
def test_options_of_the_basis_are_those_of_the_directions(cache: Path, options: dict) -> None:
    """The largest triplets, other modules: as the adapter with these options."""
    coordinates = adapt(organism(), basis="svd", model_id="organism", cache_dir=cache, **options)
    loss_of(coordinates.model).backward()
    model = stock_lora()
    watched = Watched(model, svd_directions(cache, **options), cache)
    loss_of(model).backward()
    assert_equal(watched.gradients(), grads(coordinates))
    for frame in watched.measured._frames.values():
        U, _, Vh = frame.held
        assert (U is None or Vh is None) == (len(set(frame.layer.weight.shape)) == 2), "a frame that follows is held"


def test_gpt2s_transposed_weights(cache: Path) -> None:
    """Conv1D stores W^T: its gradient, its update and its side are transposed too."""
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    built = GPT2LMHeadModel(config).double().eval()
    model = copy.deepcopy(built)
    coordinates = adapt(built, basis="svd", model_id="tiny", cache_dir=None)
    ids = torch.arange(5, 15)[None]
    coordinates.model(input_ids=ids, labels=ids).loss.backward()
    directions = random_directions(coordinates, seed=3)
    optimizer = optimizer_of(model)
    with probe.attach(optimizer, directions, model=model, project=True, cache_dir=None) as attached:
        model(input_ids=ids, labels=ids).loss.backward()
        assert_equal(attached._measured.gradients(), grads(coordinates))
        optimizer.step()
    (record,) = attached.records
    assert record.hackward_frac_out == pytest.approx(0, abs=1e-6)
    assert record.cos_update == pytest.approx(record.cos_out, abs=1e-6)


@IN_SVD
def test_refusals_at_attach(basis, cache: Path) -> None:
    """None leaves a hook behind."""
    directions, _, coordinates = basis
    model = stock_lora()
    optimizer = optimizer_of(model)
    fingerprint = directions.metadata["fingerprint"]
    num_before = num_hooks(model)
    moved = organism()
    moved.get_submodule(fingerprint["targets"][3]).weight.data[0, 0] += 1
    query = [name.replace("q_proj", "query") for name in fingerprint["targets"]]
    partitioned = organism()
    next(partitioned.parameters()).ds_id = 0  # as DeepSpeed marks what it has partitioned
    vectors = dict(zip(query, directions.vectors.values(), strict=True))
    renamed = replace(directions, vectors=vectors, metadata={"fingerprint": {**fingerprint, "targets": query}})

    fewer = {module: V for module, V in directions.vectors.items() if module != fingerprint["targets"][0]}
    trained_b = [p for name, p in model.named_parameters() if "lora_B" in name]
    cases: list[tuple[dict, str]] = [
        ({"model": moved}, "weights_sha256"),
        ({"directions": renamed}, "layers.0.self_attn.query"),
        ({"directions": replace(directions, vectors=fewer)}, "1 modules in one of the two alone"),
        ({"optimizer": torch.optim.SGD(trained_b, lr=1)}, "every trained parameter"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1), "model": norms_alone()}, "found none"),
        ({"model": norms_alone(), "project": True}, "found nothing"),
        ({"model": ia3(), "project": True}, "plain LoRA"),
        ({"model": nn.DataParallel(model)}, "DataParallel"),
        ({"model": partitioned}, "ZeRO-3"),
    ]
    for changes, message in cases:
        options = {"optimizer": optimizer, "directions": directions, "model": model, "cache_dir": cache} | changes
        with pytest.raises(InputError, match=message):
            probe.attach(**options)
    assert not optimizer._optimizer_step_pre_hooks
    assert num_hooks(model) == num_before
    # A model that is not the one that is trained: its weights are stepped, but no backward comes through its modules.
    with probe.attach(optimizer, directions, model=model, cache_dir=cache) as attached:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert "28 of 28 modules" in str(attached.records[0].null_reason)
