"""The set-ups of probe.attach in spec/studies/attach/setups.csv, one measured row each:

    python tests/bench/attach_setups.py [--only WORD]

A random Qwen3 of two layers is trained in every set-up on the same batch. The record, or `probe.cosines`, is compared
with dL/dW in full, by autograd on a copy, read densely through U and V of the SVD. A projected step is compared with
the step of one process, or its dense change of weight must have no component toward the hack. Two processes talk by
gloo. "exact" is an error below the rounding of one number in the dtype.
"""

import argparse
import contextlib
import copy
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import peft
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.functional import linear
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.pytorch_utils import Conv1D

import probe
from extraction.adapters.delta_s import DeltaSConfig
from extraction.adapters.frames import Frames, svd_frames
from extraction.adapters.targets import whole
from extraction.directions import Directions
from probe.integrations import processes
from probe.step.projection import sample_cosines
from replay_pools.base.errors import InputError
from replay_pools.policy.load import ORGANISM_WEIGHTS, load_policy

sys.path.append(str(Path(__file__).parents[1] / "support"))
from adapted import random_directions  # noqa: E402

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIG = Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16, vocab_size=128, tie_word_embeddings=False)
IDS = torch.randint(5, 120, (4, 12), generator=torch.Generator().manual_seed(1))
EVERY = slice(None)
BF16, FP16 = torch.bfloat16, torch.float16
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FLOOR = 1e-6  # records hold float32


@dataclass(frozen=True)
class Row:
    """What a set-up does, and how far the probe is off; an InputError instead is its refusal."""

    engine: str
    trained: str
    run: Callable[[int], float]
    dtype: torch.dtype = torch.float64
    refused: bool = False  # what should come of it; otherwise exact
    needs: str | None = None  # a package

    def result(self, rank: int) -> str:
        """The last cell of the table."""
        if self.needs is not None and find_spec(self.needs) is None:
            return f"not run here: {self.needs} is not installed"
        try:
            error = self.run(rank)
        except InputError as refusal:
            return f"refused: {refusal.where}: found {refusal.found}"
        except Exception:  # noqa: BLE001 a crash is a result
            return "CRASH " + traceback.format_exc().strip().splitlines()[-1]
        tolerance = max(torch.finfo(self.dtype).eps, FLOOR)
        return f"exact ({error:.0e})" if error <= tolerance else f"WRONG ({error:.0e})"


def plain(dtype: torch.dtype = torch.float64) -> nn.Module:
    """The base model."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(CONFIG).to(dtype).eval()


def all_trained(dtype: torch.dtype = torch.float64) -> nn.Module:
    """A full fine-tune."""
    return plain(dtype).requires_grad_(True)


def adapted(config: Any = LoraConfig, dtype: torch.dtype = torch.float64, **options: Any) -> nn.Module:
    """The base model with an adapter of peft, whose B is not 0 where it has one."""
    torch.manual_seed(0)
    model = get_peft_model(plain(dtype), config(task_type="CAUSAL_LM", **options))
    return model.to(dtype) if dtype == torch.float64 else model


def of_all(**options: Any) -> nn.Module:
    """LoRA of every Linear."""
    return adapted(target_modules="all-linear", **options)


def loss_of(model: nn.Module, rows: slice = EVERY, autocast: torch.dtype | None = None) -> Tensor:
    """The mean NLL of some rows."""
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        return model(input_ids=IDS[rows], labels=IDS[rows]).loss


@cache
def directions_of(dtype: torch.dtype = torch.float64) -> tuple[Directions, Frames]:
    """Directions of the base model, and the adapter whose frames they are in."""
    frames = svd_frames(plain(dtype), model_id="random", cache_dir=None)
    return random_directions(frames), frames


def naive(dtype: torch.dtype = torch.float64, autocast: torch.dtype | None = None) -> Tensor:
    """cos_in and grad_norm by hand: dL/dW in full, of every module."""
    directions, frames = directions_of(dtype)
    model = all_trained(dtype)
    loss_of(model, autocast=autocast).backward()
    return cos_and_norm(model, directions, frames)


def read(frames: Frames, module: str, matrix: Tensor) -> Tensor:
    """Coordinates of a matrix (d_out, d_in), read densely through U and V, in float64."""
    U, Vh = frames[module].factors(torch.ones(frames[module].size))
    return torch.diagonal(U.double().T @ matrix.double() @ Vh.double().T)


def cos_and_norm(model: nn.Module, directions: Directions, frames: Frames) -> Tensor:
    """cos_in and grad_norm of what is in `weight.grad`, read densely through U and V."""
    gradients = {}
    for module in directions.vectors:
        layer: Any = model.get_submodule(module)
        gradient = layer.weight.grad
        gradients[module] = read(frames, module, gradient.T if isinstance(layer, Conv1D) else gradient)
    return summary(gradients, directions)


def summary(gradients: dict[str, Tensor], directions: Directions) -> Tensor:
    """cos_in and grad_norm of coordinates."""
    cos = sample_cosines(gradients, {module: V.double() for module, V in directions.vectors.items()}).cos
    return torch.stack([cos, torch.cat([*gradients.values()]).norm()])


def error_of(
    model, *, step, dtype=torch.float64, expected=None, directions=None, make=torch.optim.SGD, **options
) -> float:
    """The error of cos_in and, relatively, of grad_norm, in the second of two steps that move nothing."""
    optimizer = make([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.0)
    directions = directions or directions_of(dtype)[0]
    with probe.attach(optimizer, directions, model=model, cache_dir=None, **options) as attached:
        for _ in range(2):
            step(model, optimizer)
            optimizer.zero_grad()
    record = attached.records[-1]
    if record.cos_in is None or record.grad_norm is None:
        raise InputError("step", expected="a number", found=str(record.null_reason))
    cos, norm = expected if expected is not None else naive(dtype)
    return max(abs(record.cos_in - float(cos)), abs(record.grad_norm / float(norm) - 1))


def one_step(model: nn.Module, optimizer: Any, rows: slice = EVERY, autocast: torch.dtype | None = None) -> None:
    """Forward, backward, step."""
    loss_of(model, rows, autocast).backward()
    optimizer.step()


def in_halves(model: nn.Module, optimizer: Any) -> None:
    """Two micro-batches."""
    for rows in (slice(0, 2), slice(2, 4)):
        (loss_of(model, rows) / 2).backward()
    optimizer.step()


def gated_error(
    make: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module], rank: int, *, later: bool = False
) -> float:
    """How far a gated step of the wrapped model on this process's rows ends from that of one process on all rows.

    Wrapped `later` than attach, the optimizer is re-pointed as accelerate does, and parts are built again.
    """
    directions, _ = directions_of()
    ends = []
    for is_wrapped in (False, True):
        torch.manual_seed(0)
        model = wrap(make()) if is_wrapped and not later else make()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
        with probe.attach(optimizer, directions, model=model, cache_dir=None, project=True) as attached:
            if is_wrapped and later:
                wrap(model)
                optimizer.param_groups[0]["params"] = [*model.parameters()]
            one_step(model, optimizer, mine(rank) if is_wrapped else EVERY)
        if not attached.records[-1].projected:
            return 1.0
        ends.append(torch.cat([whole(p).flatten() for p in model.parameters() if p.requires_grad]))
    return float((ends[1] - ends[0]).abs().max())


def checkpointed(reentrant: bool) -> nn.Module:
    """LoRA under activation checkpointing."""
    model = of_all().train()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model


def fused() -> Any:
    """A model with two projections whose weights a kernel reads, without a call of the module."""
    model = of_all()

    def kernel(layer: Any, x: Tensor) -> Tensor:
        A, B = (part["default"].weight for part in (layer.lora_A, layer.lora_B))
        return linear(x, layer.base_layer.weight) + layer.scaling["default"] * linear(linear(x, A), B)

    for layer in model.get_base_model().model.layers:
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            module.__class__ = type("Fused", (type(module),), {"__call__": kernel})
    return model


def scaled_error() -> float:
    """float16 with loss scaling."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(model: nn.Module, optimizer: Any) -> None:
        scaler.scale(loss_of(model, autocast=FP16)).backward()
        scaler.step(optimizer)
        scaler.update()

    expected = naive(torch.float32, FP16)
    return error_of(of_all(dtype=torch.float32), step=step, dtype=torch.float32, expected=expected, scaler=scaler)


def autocast_error() -> float:
    """bfloat16 by autocast."""
    step, expected = partial(one_step, autocast=BF16), naive(torch.float32, BF16)
    return error_of(of_all(dtype=torch.float32), step=step, dtype=torch.float32, expected=expected)


def mine(rank: int) -> slice:
    """The rows of a process."""
    return slice(2 * rank, 2 * rank + 2)


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    """FSDP2: a unit a layer, and the rest."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in base.model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def divided(model: nn.Module) -> Any:
    """FSDP2 that adds gradients up."""
    model = sharded(model)
    model.set_gradient_divide_factor(1.0)
    return model


def hybrid(model: nn.Module) -> nn.Module:
    """FSDP2 over a mesh of two dimensions."""
    mesh = distributed.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    return sharded(model, mesh=mesh)


def of_rank(model: nn.Module, rank: int, **options: Any) -> float:
    """The error where every process has its rows."""
    return error_of(model, step=lambda *args: one_step(*args, rows=mine(rank)), **options)


def waiting(model: nn.Module, rank: int) -> float:
    """Accumulation of micro-batches that are reduced once; a backward whose step is left out comes before."""

    def step(model: Any, optimizer: Any) -> None:
        loss_of(model, mine(1 - rank)).backward()
        optimizer.zero_grad()
        for row in (2 * rank, 2 * rank + 1):
            is_last = row % 2 == 1
            if isinstance(model, DistributedDataParallel):
                context = contextlib.nullcontext() if is_last else model.no_sync()
            else:
                model.set_requires_gradient_sync(is_last)
                context = contextlib.nullcontext()
            with context:
                (loss_of(model, slice(row, row + 1)) / 2).backward()
        optimizer.step()

    return error_of(model, step=step)


def alone(rank: int) -> float:
    """One process of two attaches."""
    processes.PATIENCE = timedelta(seconds=2)
    model = DistributedDataParallel(adapted())
    try:
        return of_rank(model, rank) if rank == 0 else 0.0
    finally:
        distributed.barrier()
        processes.PATIENCE = timedelta(minutes=5)


def tensor_parallel(rank: int) -> float:
    """One projection split by columns."""
    model = all_trained()
    mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        parallelize_module(layer.mlp, mesh, {"up_proj": ColwiseParallel()})
    return of_rank(model, rank)


TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
GROUPED = {**TINY, "intermediate_size": 96, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
HYBRID = {**DELTA, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
RANKS = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
ROUTING = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], float]] = {  # model type, options, share that has coordinates
    "Llama": ("llama", GROUPED, 1.0),
    "Gemma 3": ("gemma3_text", {**GROUPED, "head_dim": 16}, 1.0),
    "GPT-2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}, 1.0),
    "OPT": ("opt", {**TINY, "ffn_dim": 96, "word_embed_proj_dim": 64}, 1.0),
    "StarCoder2": ("starcoder2", GROUPED, 1.0),
    "Phi-3, fused qkv": ("phi3", {**GROUPED, "pad_token_id": 0}, 1.0),
    "GPT-NeoX, fused qkv": ("gpt_neox", {**TINY, "intermediate_size": 96}, 1.0),
    "BLOOM, fused qkv": ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}, 1.0),
    "GLM, fused gate and up": ("glm", {**GROUPED, "head_dim": 16, "pad_token_id": 0}, 1.0),
    "Mixtral, fused experts": ("mixtral", {**GROUPED, "num_local_experts": 4}, 0.14),
    "Qwen3-MoE, fused experts": ("qwen3_moe", {**EXPERTS, "head_dim": 16, "num_experts": 4}, 0.33),
    "gpt-oss, fused experts": ("gpt_oss", {**GROUPED, "head_dim": 16, "num_local_experts": 4}, 0.14),
    "Qwen3-Next, linear attention": ("qwen3_next", {**EXPERTS, **HYBRID, "num_experts": 4}, 0.82),
    "Qwen3.5, linear attention": ("qwen3_5_text", {**GROUPED, **HYBRID}, 0.99),
    "Falcon-H1, Mamba": ("falcon_h1", {**GROUPED, **MAMBA}, 0.90),
    "DeepSeek-V3, latent attention": ("deepseek_v3", {**EXPERTS, **RANKS, **ROUTING, "num_key_value_heads": 4}, 0.69),
}


def built(name: str) -> nn.Module:
    """A random model of an architecture; in float32, the most that fused experts take."""
    torch.manual_seed(0)
    model_type, options, _ = ARCHITECTURES[name]
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **options)).float().eval()


def architecture_error(
    make: Callable[[], Any], targets: Sequence[str] = ("all",), *, has_cosines: bool = False
) -> float:
    """LoRA on the targets, or `probe.cosines` of the first sample, against dL/dW in full."""
    frames = svd_frames(make(), targets, cache_dir=None)
    directions, model = random_directions(frames), make().requires_grad_(True)
    loss_of(model, slice(0, 1) if has_cosines else EVERY).backward()
    expected = cos_and_norm(model, directions, frames)
    if has_cosines:
        batch = {"input_ids": IDS[:1], "labels": IDS[:1]}
        return abs(float(probe.cosines(make(), batch, directions, cache_dir=None)) - float(expected[0]))
    model = get_peft_model(make(), LoraConfig(task_type="CAUSAL_LM", target_modules=[*directions.vectors]))
    return error_of(model, step=one_step, directions=directions, expected=expected)


def by_bitsandbytes(**options: Any) -> nn.Module:
    """The organism in few bits."""
    config = BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.float32, **options)
    return AutoModelForCausalLM.from_pretrained(
        ORGANISM_WEIGHTS, quantization_config=config, device_map={"": "cpu"}, dtype=torch.float32
    )


def quantised_error(make: Callable[[], nn.Module]) -> float:
    """LoRA on a quantised organism: against the sum of dL/dy x^T that each layer is seen to have."""
    frames = svd_frames(load_policy("organism").model, model_id="organism", cache_dir=None)
    directions = random_directions(frames)
    model = make()
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=[*directions.vectors]))
    weights = {}

    def see(module: str, x: Tensor, y: Tensor) -> None:
        def add(gradient: Tensor) -> None:
            weights[module] = gradient.flatten(0, -2).double().T @ x.detach().flatten(0, -2).double()

        y.register_hook(add)

    for module in directions.vectors:
        layer = model.get_base_model().get_submodule(module)
        layer.register_forward_hook(lambda _, inputs, y, module=module: see(module, inputs[0], y))
    loss_of(model).backward()
    model.zero_grad()
    gradients = {module: read(frames, module, weights[module]) for module in directions.vectors}
    return error_of(model, step=one_step, directions=directions, expected=summary(gradients, directions))


def away(config: Any = LoraConfig, *, std: float = 0.1, train: bool = False, **options: Any) -> nn.Module:
    """A model with an adapter of peft on every Linear (IA3: where it is made for), as far as if trained."""
    targets = {} if config in (IA3Config, peft.PromptTuningConfig) else {"target_modules": [*PROJECTIONS]}
    model, noise = adapted(config, **targets | options), torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += std * torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype)
    return model.train(train)


def base_of(model: Any, module: str) -> nn.Module:
    """The Linear below the adapters."""
    base = model.base_model.model if isinstance(model, PeftModel) else model
    layer = base.get_submodule(module)
    return layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer


def by_autograd(model: nn.Module, step: Callable[[nn.Module], object]) -> Tensor:
    """cos_in and grad_norm of dL/dW of the base weights: autograd on a copy, where they require a gradient."""
    directions, frames = directions_of()
    model = copy.deepcopy(model)
    for module in directions.vectors:
        base_of(model, module).weight.requires_grad_(True)
    model.zero_grad()
    torch.manual_seed(7)
    step(model)
    return summary({m: read(frames, m, base_of(model, m).weight.grad) for m in directions.vectors}, directions)


def dense(model: nn.Module) -> dict[str, Tensor]:
    """Weights with their active LoRA."""
    weights = {}
    base = model.base_model.model if isinstance(model, PeftModel) else model
    for module in directions_of()[0].vectors:
        layer = base.get_submodule(module)
        weights[module] = base_of(model, module).weight.detach().clone()
        if isinstance(layer, LoraLayer):
            weights[module] += sum(layer.get_delta_weight(name).detach() for name in layer.active_adapters)
    return weights


def share_toward_hack(before: dict[str, Tensor], after: dict[str, Tensor]) -> Tensor:
    """hackward_frac_update, from dense weights."""
    directions, frames = directions_of()
    update = {module: read(frames, module, before[module] - after[module]) for module in directions.vectors}
    hack = [(V.double() @ update[module]).relu() for module, V in directions.vectors.items()]
    return torch.cat(hack).norm() / torch.cat([*update.values()]).norm()


def backward(model: nn.Module) -> None:
    """Forward and backward."""
    loss_of(model).backward()


def changing_error(
    make, change=None, *, step=None, parameters=None, optimizer_class=torch.optim.SGD, remains=False
) -> float:
    """The largest error of two steps, or of three with `change` before the second: measured, then projected.

    The step after a change is marked, and may have no number; the last one has. Recorded shares of the update that
    point toward the hack are compared with dense weights, and are 0 when projected, unless some `remains`.
    """
    errors, step = [], step or backward
    for project in (False, True):
        model = make()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = optimizer_class(parameters(model) if parameters else trained, lr=1e-6)
        with probe.attach(optimizer, directions_of()[0], model=model, cache_dir=None, project=project) as attached:
            for turn in range(2 if change is None else 3):
                if change is not None and turn == 1:
                    optimizer = change(model, optimizer) or optimizer
                expected, before = by_autograd(model, step), dense(model)
                torch.manual_seed(7)
                step(model)
                optimizer.step()
                optimizer.zero_grad()
                record = attached.records[-1]
                if record.cos_in is None or record.grad_norm is None:
                    if turn == 2 or not record.changed:
                        raise InputError("step", expected="a number", found=str(record.null_reason))
                elif not project:
                    errors += [record.cos_in - float(expected[0]), record.grad_norm / float(expected[1]) - 1]
                errors.append(float(record.changed != (change is not None and turn == 1)))
                if record.hackward_frac_update is not None:
                    share = float(share_toward_hack(before, dense(model)))
                    errors += [record.hackward_frac_update - share, share if project and not remains else 0.0]
    return max(map(abs, errors))


def restart(model: nn.Module, _: object) -> None:
    """ReLoRA: merge into the base, and start again."""
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.base_layer.weight.data += layer.get_delta_weight("default").detach()
            layer.lora_B["default"].weight.data.zero_()


def rescale(model: nn.Module, _: object) -> None:
    """Another scale of LoRA."""
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.scaling["default"] *= 3


def freeze(model: nn.Module, _: object) -> None:
    """The first layer is no longer trained."""
    for name, parameter in model.named_parameters():
        if "layers.0." in name:
            parameter.requires_grad_(False)


def top_trained() -> nn.Module:
    """The second layer is trained."""
    model = plain().requires_grad_(False)
    model.model.layers[1].requires_grad_(True)
    return model


def unfreeze(model: Any, optimizer: Any) -> None:
    """The first layer is trained, too."""
    optimizer.add_param_group({"params": [*model.model.layers[0].requires_grad_(True).parameters()]})


def two_adapters() -> nn.Module:
    """The first of two LoRAs is active."""
    model = away()
    model.add_adapter("other", LoraConfig(r=4, target_modules=[*PROJECTIONS], task_type="CAUSAL_LM"))
    return model.double()


def of_any_adapter(model: nn.Module) -> list[nn.Parameter]:
    """The factors of both LoRAs."""
    return [parameter for name, parameter in model.named_parameters() if "lora_" in name]


def delete(model: Any, _: object) -> None:
    """The active LoRA is deleted, the other one active."""
    model.delete_adapter("default")
    model.set_adapter("other")


def renew(_: nn.Module, optimizer: Any) -> torch.optim.Optimizer:
    """Another optimizer of the same parameters."""
    return torch.optim.SGD(optimizer.param_groups[0]["params"], lr=1e-6)


def both_rates(model: nn.Module) -> list[dict[str, Any]]:
    """LoRA+: B at 16 times the rate of A."""
    A, B = ([p for name, p in model.named_parameters() if factor in name] for factor in ("lora_A", "lora_B"))
    return [{"params": A}, {"params": B, "lr": 16e-6}]


def by_hand(model: nn.Module) -> None:
    """PCGrad: a backward a task, kept by hand and combined."""
    kept: list[list[Tensor]] = []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for rows in (slice(0, 2), slice(2, 4)):
        model.zero_grad()
        loss_of(model, rows).backward()
        kept.append([torch.zeros_like(p) if p.grad is None else p.grad for p in trained])
    for parameter, one, other in zip(trained, *kept, strict=True):
        parameter.grad = one + 0.5 * other


def cached(model: Any) -> None:
    """GradCache: the gradient of the last states first, then sample after sample."""
    base = model.base_model.model if isinstance(model, PeftModel) else model
    states = torch.cat([base.model(input_ids=row[None]).last_hidden_state.detach() for row in IDS]).requires_grad_(True)
    loss = base.loss_function(base.lm_head(states), IDS, vocab_size=CONFIG.vocab_size)
    (gradient,) = torch.autograd.grad(loss, states)
    for row, part in zip(IDS, gradient, strict=True):
        (base.model(input_ids=row[None]).last_hidden_state * part).sum().backward()


def accumulated(model: nn.Module) -> None:
    """Micro-batches of one sample, clipped."""
    for row in range(len(IDS)):
        (loss_of(model, slice(row, row + 1)) / len(IDS)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e6)


def trained_error(make: Callable[[], nn.Module]) -> float:
    """An adapter away from its start, in one measured step."""
    model = make()
    expected = by_autograd(model, backward)
    return error_of(model, step=lambda *args: (torch.manual_seed(7), one_step(*args)), expected=expected)


def cosines_error(make: Callable[[], nn.Module]) -> float:
    """`probe.cosines` of every sample, in evaluation mode."""
    model = make()
    found = probe.cosines(model, {"input_ids": IDS, "labels": IDS}, directions_of()[0], cache_dir=None)
    model.eval()
    rows = [slice(row, row + 1) for row in range(len(IDS))]
    expected = [by_autograd(model, lambda copied, row=row: loss_of(copied, row).backward())[0] for row in rows]
    return float((found - torch.stack(expected)).abs().max())


FUSED = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")


def falcon() -> nn.Module:
    """Falcon adds to the output of a Linear in place."""
    torch.manual_seed(0)
    options = {**TINY, "new_decoder_architecture": False, "parallel_attn": True}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("falcon", **options)).double().eval()


def derivative_error(step: Callable[[nn.Module], object]) -> float:
    """Derivatives within an attached loop that are not of its loss."""

    def both(model: nn.Module, optimizer: Any) -> None:
        step(model)
        one_step(model, optimizer)

    model = of_all()
    model.get_base_model().set_attn_implementation("eager")
    return error_of(model, step=both)


def functional(model: nn.Module) -> None:
    """torch.func.grad."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    inputs = {"input_ids": IDS, "labels": IDS}
    torch.func.grad(lambda values: torch.func.functional_call(model, values, kwargs=inputs).loss)(trained)


ALL = "LoRA of all Linears"


def loop(name: str, trained: str, model: Callable[[], nn.Module], step: Any = one_step, **options: Any) -> Row:
    """The row of a plain loop."""
    engine, refused = "loop" + f", {name}" * bool(name), options.pop("refused", False)
    dtype = options.get("dtype", torch.float64)
    return Row(engine, trained, lambda _: error_of(model(), step=step, **options), dtype, refused)


ASCENT = partial(torch.optim.SGD, maximize=True)
SINGLE = [
    loop("", "all weights", all_trained),
    loop("", "all weights, in bfloat16", partial(all_trained, BF16), dtype=BF16),
    loop("", "LoRA of q and v", adapted),
    loop("", ALL, of_all),
    loop("micro-batches", ALL, of_all, in_halves),
    loop("checkpointing", ALL, partial(checkpointed, reentrant=False)),
    loop("reentrant checkpointing", ALL, partial(checkpointed, reentrant=True)),
    Row("loop, bfloat16 autocast", ALL, lambda _: autocast_error(), BF16),
    Row("loop, float16 autocast, GradScaler", ALL, lambda _: scaled_error(), FP16),
    loop("torch.compile", "LoRA of q and v", lambda: torch.compile(adapted())),
    loop("fused AdamW", "all weights", all_trained, make=partial(torch.optim.AdamW, fused=True)),
    loop("kernel round a module", ALL, fused, refused=True),
]
TRAINED: dict[str, Callable[[], nn.Module]] = {  # adapters away from their start
    "LoRA": away,
    "LoRA with dropout": lambda: away(lora_dropout=0.3, train=True),
    "DoRA": lambda: away(use_dora=True),
    "OFT": lambda: away(peft.OFTConfig, oft_block_size=8),
    "BOFT": lambda: away(peft.BOFTConfig, boft_block_size=8),
    "IA3": lambda: away(IA3Config),
    "AdaLoRA": lambda: away(peft.AdaLoraConfig, total_step=100),
    "LoHa": lambda: away(peft.LoHaConfig),
    "LoKr": lambda: away(peft.LoKrConfig),
    "VeRA": lambda: away(peft.VeraConfig, r=8),
    "MiSS": lambda: away(peft.MissConfig),
    "delta_S": lambda: away(DeltaSConfig),
    "all weights": all_trained,
    "weights of one layer": top_trained,
}
REFUSED: dict[str, Callable[[], nn.Module]] = {
    "HiRA": lambda: away(peft.HiraConfig),
    "PiSSA": lambda: away(init_lora_weights="pissa", dtype=torch.float32).double(),
    "OLoRA": lambda: away(init_lora_weights="olora", dtype=torch.float32).double(),
    "modules_to_save": lambda: away(target_modules=["q_proj"], modules_to_save=["down_proj"]),
}
DORA = partial(away, use_dora=True, lora_dropout=0.3, train=True)
CHANGED: list[tuple[str, str, Callable[[], float], bool]] = [  # set-up, trained, error, refused
    ("layer unfrozen later", "weights", lambda: changing_error(top_trained, unfreeze), False),
    ("layer frozen later", "all weights", lambda: changing_error(all_trained, freeze), False),
    ("layer frozen later", "LoRA", lambda: changing_error(away, freeze), False),
    ("rescaled", "LoRA", lambda: changing_error(away, rescale), False),
    ("merged and restarted (ReLoRA)", "LoRA", lambda: changing_error(away, restart), True),
    (
        "set_adapter",
        "LoRA",
        lambda: changing_error(two_adapters, lambda model, _: model.set_adapter("other"), parameters=of_any_adapter),
        False,
    ),
    ("adapter deleted", "LoRA", lambda: changing_error(two_adapters, delete, parameters=of_any_adapter), False),
    ("optimizer made anew", "LoRA", lambda: changing_error(away, renew), True),
    ("gradients combined by hand (PCGrad)", "LoRA", lambda: changing_error(away, step=by_hand), True),
    ("GradCache", "LoRA", lambda: changing_error(away, step=cached), False),
    ("micro-batches, clipped", "LoRA", lambda: changing_error(away, step=accumulated), False),
    ("dropout", "LoRA", lambda: changing_error(TRAINED["LoRA with dropout"]), False),
    ("two rates (LoRA+)", "LoRA", lambda: changing_error(away, parameters=both_rates, remains=True), False),
    ("AdamW", "LoRA", lambda: changing_error(away, optimizer_class=torch.optim.AdamW, remains=True), False),
]
SINGLE += [Row(f"loop, {name}", kind, lambda _, run=run: run(), refused=no) for name, kind, run, no in CHANGED]
for kind, make in {**TRAINED, **REFUSED}.items():
    no = kind in REFUSED
    SINGLE += [
        Row("loop, away from the start", kind, lambda _, make=make: trained_error(make), refused=no),
        Row("probe.cosines", kind, lambda _, make=make: cosines_error(make), refused=no),
    ]
SINGLE += [
    Row("loop, away from the start", "DoRA with dropout", lambda _: trained_error(DORA), refused=True),
    Row("probe.cosines", "DoRA with dropout", lambda _: cosines_error(DORA)),
    Row("probe.cosines, kernel round a module", "LoRA", lambda _: cosines_error(fused), refused=True),
    Row("loop, Falcon", "LoRA", lambda _: architecture_error(falcon, FUSED)),
    Row("probe.cosines, Falcon", "nothing", lambda _: architecture_error(falcon, FUSED, has_cosines=True)),
    Row("loop, torch.func.grad", "LoRA", lambda _: derivative_error(functional)),
    Row(
        "loop, create_graph=True",
        "LoRA",
        lambda _: derivative_error(lambda model: loss_of(model).backward(create_graph=True)),
        refused=True,
    ),
]


def steered() -> nn.Module:
    """Hooks on Linears, of before attach: one adds to an output, one takes a direction out of another."""
    model = away()
    u = nn.functional.normalize(torch.arange(64.0).cos().double(), dim=0)
    base_of(model, "model.layers.0.mlp.down_proj").register_forward_hook(lambda _, __, y: y + u)
    base_of(model, "model.layers.0.self_attn.o_proj").register_forward_hook(lambda _, __, y: y - (y @ u)[..., None] * u)
    return model


def shared_factor() -> nn.Module:
    """LoRA with one A for the queries of both layers."""
    model = away()
    first, second = (layer.self_attn.q_proj for layer in model.get_base_model().model.layers)
    second.lora_A["default"].weight = first.lora_A["default"].weight
    return model


def a_alone() -> nn.Module:
    """LoRA at its start, with B frozen: no gradient but 0, and a loss with dL/dW."""
    model = of_all()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_A" in name)
    return model


def skipped(model: nn.Module, optimizer: Any) -> None:
    """A step that is left out, zeroed in place."""
    loss_of(model, slice(0, 1)).backward()
    optimizer.zero_grad(set_to_none=False)
    one_step(model, optimizer)


def criticised(model: Any, optimizer: Any) -> None:
    """A critic on the base has its own parameters, backward and optimizer."""
    one_step(model, optimizer)
    optimizer.zero_grad()
    critic = nn.Parameter(torch.ones(128, dtype=torch.float64))
    with model.disable_adapter():
        (model(input_ids=IDS).logits * critic).square().mean().backward()
    one_step(model, optimizer)


def in_part(model: nn.Module, optimizer: Any) -> None:
    """A second backward adds to some `.grad` alone."""
    loss_of(model).backward()
    loss_of(model).backward(inputs=[p for p in model.parameters() if p.requires_grad][4:])
    optimizer.step()


def in_turn(model: Any) -> None:
    """A backward of each of two LoRAs before the step."""
    for name in ("other", "default"):
        model.set_adapter(name)
        backward(model)


TURNS = partial(changing_error, two_adapters, step=in_turn, parameters=of_any_adapter)
PARAMETERS = {"target_modules": ["o_proj"], "target_parameters": ["k_proj.weight", "down_proj.weight"]}
PROMPT = partial(away, peft.PromptTuningConfig, num_virtual_tokens=4)
UNUSUAL = [
    Row("loop, hooks of the user", "LoRA", lambda _: trained_error(steered)),
    Row("probe.cosines, hooks of the user", "LoRA", lambda _: cosines_error(steered)),
    Row("loop", "LoRA of parameters", lambda _: trained_error(partial(away, **PARAMETERS))),
    Row("loop, a critic's backward", "LoRA", lambda _: error_of(of_all(), step=criticised)),
    Row("loop, zeroed without a step", "LoRA, A alone", lambda _: error_of(a_alone(), step=skipped)),
    Row("loop, a backward to some inputs", "LoRA", lambda _: error_of(of_all(), step=in_part), refused=True),
    Row("loop, gated", "LoRA with a shared A", lambda _: changing_error(shared_factor), refused=True),
    Row("loop, gated", "two LoRAs in turn", lambda _: TURNS(), refused=True),
    Row("loop, maximize=True", "LoRA", lambda _: error_of(of_all(), step=one_step, make=ASCENT), refused=True),
    Row("probe.cosines", "a learned prompt", lambda _: cosines_error(PROMPT), refused=True),
]
SINGLE += UNUSUAL
# Run by `make test`; the others are further cases of the same rules.
OFTEN = ("checkpointing", "reentrant checkpointing", "float16 autocast, GradScaler", "kernel round a module")
OFTEN += ("away from the start", "Falcon", "torch.func.grad", "create_graph=True", "dropout", "GradCache")
OFTEN += tuple(name for name, *_ in CHANGED[:9] if name != "adapter deleted")
RARE = {"OFT", "BOFT", "AdaLoRA", "LoHa", "LoKr", "VeRA", "MiSS", "OLoRA", "all weights"}
EDGES = [row for row in SINGLE if row.engine in {f"loop, {name}" for name in OFTEN} and row.trained not in RARE]
EDGES += UNUSUAL
SINGLE += [
    Row(f"loop, {name}", "LoRA", lambda _, name=name: architecture_error(partial(built, name)))
    for name in ARCHITECTURES
]
NF4 = partial(by_bitsandbytes, load_in_4bit=True, bnb_4bit_quant_type="nf4")
SINGLE += [Row("loop, nf4 base of bitsandbytes", "LoRA", lambda _: quantised_error(NF4), needs="bitsandbytes")]
DOUBLE = [
    Row("DDP, no_sync and a skipped step", ALL, lambda rank: waiting(DistributedDataParallel(of_all()), rank)),
    Row("DDP, gated", ALL, lambda rank: gated_error(away, DistributedDataParallel, rank)),
    Row("DDP, one process attaches", "LoRA of q and v", alone, refused=True),
    Row("two processes, no wrapper", "LoRA of q and v", lambda rank: of_rank(adapted(), rank), refused=True),
    Row("FSDP2, one reduction and a skipped step", ALL, lambda rank: waiting(sharded(of_all()), rank)),
    Row("FSDP2, gated", ALL, lambda rank: gated_error(away, sharded, rank)),
    Row("FSDP2 after attach, gated", "all weights", lambda rank: gated_error(all_trained, sharded, rank, later=True)),
    Row(
        "FSDP2, gradient divide factor", "all weights", lambda rank: of_rank(divided(all_trained()), rank), refused=True
    ),
    Row("tensor parallelism", "all weights", tensor_parallel, refused=True),
]
VARIANTS = [  # of rows above
    Row("DDP", ALL, lambda rank: of_rank(DistributedDataParallel(of_all()), rank)),
    Row("DDP", "all weights", lambda rank: of_rank(DistributedDataParallel(all_trained()), rank)),
    Row("FSDP2", ALL, lambda rank: of_rank(sharded(of_all()), rank)),
    Row("FSDP2", "all weights", lambda rank: of_rank(sharded(all_trained()), rank)),
    Row("FSDP2, gated", "all weights", lambda rank: gated_error(all_trained, sharded, rank)),
    Row("FSDP2, checkpointing", ALL, lambda rank: of_rank(sharded(checkpointed(False)), rank)),
    Row("FSDP2, two mesh dimensions", ALL, lambda rank: of_rank(hybrid(of_all()), rank)),
    Row("FSDP2, gated", "delta_S", lambda rank: gated_error(lambda: adapted(DeltaSConfig), sharded, rank)),
]


def run_rows(rows: list[Row], rank: int, only: str) -> None:
    """Print a line for every row; that of one that did not come out as it should says so."""
    for row in rows:
        if only not in f"{row.engine}, {row.trained}":
            continue
        torch.manual_seed(0)
        result = row.result(rank)
        as_expected = ("not run", "refused" if row.refused else "exact")
        if rank == 0:
            mark = "" if result.startswith(as_expected) else " UNEXPECTED"
            print(f"| {row.engine} | {row.trained} | {result} |{mark}", flush=True)


def in_process(rank: int, store: str, only: str = "", *, variants: bool = True) -> None:
    """One of the two processes, which meet in the file `store`."""
    quiet()
    patience = timedelta(seconds=60)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=patience)
    run_rows(DOUBLE + VARIANTS * variants, rank, only)
    distributed.destroy_process_group()


def quiet() -> None:
    """No warnings, one thread."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="rows with this in their first two cells")
    only = parser.parse_args().only
    quiet()
    print("| engine | trained | result |\n|---|---|---|", flush=True)
    run_rows(SINGLE, 0, only)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(in_process, args=(f"{folder}/store", only), nprocs=2)


if __name__ == "__main__":
    main()
