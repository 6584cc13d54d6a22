"""Log-probabilities of scored tokens, without ever holding the logits of a whole batch.

    completion_logprobs(model, rows)   =   log_softmax(model(rows).logits)[predicting, targets]

Only the N hidden states that predict a scored token go through the head, CHUNK_SIZE of them at a time, so that
(CHUNK_SIZE, v) is the largest tensor with a vocabulary axis, and none outlives its chunk.

Shapes: N scored tokens of a pass, n of a chunk, d the hidden size, v the vocabulary; G samples, T tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from extraction.attention import forget_lengths
from extraction.batch import Rows
from replay_pools.base.errors import InputError

CHUNK_SIZE = 512
WIDE_ROWS = 64  # rows of lower-precision logits that are in float32 at a time: few enough for a CPU's cache

TRIAL_TOKENS = 8  # random tokens that a model's own logits are compared on

# Models with logits that are head(hidden state), and the configuration and adapters they had then.
_checked: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def completion_logprobs(model: PreTrainedModel | PeftModel, rows: Rows) -> Tensor:
    """Compute log p(token | everything before it) of every scored token, sample after sample, (N,).

    Differentiable, but not in the head's own parameters. The log-softmax is computed in float32 (float64 for a float64
    model).

    Args:
        model: a causal language model with logits `head(last hidden state)`.
        rows: the samples, on the model's device; packed ones inside `attention.attending`.

    Raises:
        InputError: the model rescales or caps its logits, has no separate backbone and head, or a trainable head.
    """
    backbone, head = split_model(model)
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in head.parameters()):
        raise InputError(type(model).__name__, expected="a frozen head", found="a head that requires gradients")
    forget_lengths(backbone)
    hidden = backbone(**rows.inputs, use_cache=False).last_hidden_state  # (R, W, d)
    return ChosenLogprobs.apply(hidden.flatten(0, 1)[rows.predicting], rows.targets, head)


class ChosenLogprobs(torch.autograd.Function):
    """log softmax(head(hidden))[targets], (N, d) and (N,) -> (N,).

    Token n's log-probability depends on hidden state n alone, so the forward computes d logp_n / d hidden_n (N, d)
    while it has the logits. Recomputing the logits in the backward would cost a third product with the head.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, targets: Tensor, head: nn.Module) -> Tensor:
        """Compute log-probabilities chunk by chunk, with derivatives only if a gradient is needed."""
        needs_gradient = ctx.needs_input_grad[0]
        logprobs, derivatives = [], []
        for states, tokens in zip(hidden.split(CHUNK_SIZE), targets.split(CHUNK_SIZE), strict=True):
            # A custom forward runs without autograd, which the head, any module, needs here.
            with torch.set_grad_enabled(needs_gradient):
                states = states.detach().requires_grad_(needs_gradient)
                logits = head(states)
            chunk_logprobs, slopes = chosen_logprobs(logits.detach(), tokens)
            logprobs.append(chunk_logprobs)
            if needs_gradient:
                derivatives += torch.autograd.grad(logits, states, slopes)
        if derivatives:
            ctx.save_for_backward(torch.cat(derivatives))
        return torch.cat(logprobs)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (the decorator hides the names)
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return dL/d hidden_n = dL/d logp_n (d logp_n / d hidden_n)."""
        (gradient,), (derivative,) = grad_outputs, ctx.saved_tensors
        return gradient.to(derivative.dtype)[:, None] * derivative, None, None


def chosen_logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log softmax(logits)[target] (n,) in at least float32, and its derivative 1[v = target] - p_v (n, v).

    Lower-precision logits are widened a few rows at a time, since a copy of all costs more than the arithmetic.
    """
    if logits.dtype in (torch.float32, torch.float64):
        return wide_logprobs(logits, targets)
    logprobs, slopes = [], torch.empty_like(logits)
    for rows, tokens, part in zip(*(x.split(WIDE_ROWS) for x in (logits, targets, slopes)), strict=True):
        row_logprobs, row_slopes = wide_logprobs(rows.float(), tokens)
        logprobs.append(row_logprobs)
        part.copy_(row_slopes)
    return torch.cat(logprobs), slopes


def wide_logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return `chosen_logprobs` of float32 or float64 logits.

    With m the largest logit, e_v = exp(l_v - m) of the OTHER tokens and `gap` = m - l_target:

        logp = -gap - log1p(sum e_v + expm1(-gap))      1 - p_target = sum e_v / (sum e_v + exp(-gap))

    so a confident token's logp and 1 - p_target are sums of small numbers, not differences of numbers near 1.
    """
    index = targets[:, None]
    largest = logits.amax(dim=1, keepdim=True)
    gap = largest - logits.gather(1, index)  # (n, 1)
    # In place where possible: tensors of this shape are the largest of the whole pass.
    weights = (logits - largest).exp_().scatter_(1, index, 0.0)
    others = weights.sum(dim=1, keepdim=True)
    logprobs = -gap - torch.log1p(others + torch.expm1(-gap))
    total = others + torch.exp(-gap)
    slopes = weights.div_(-total).scatter_(1, index, others / total)
    return logprobs.squeeze(1), slopes


def scatter_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Place (N,) values of tokens where `mask` (G, T) is True, row after row; 0 elsewhere, (G, T)."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


def split_model(model: PreTrainedModel | PeftModel) -> tuple[PreTrainedModel, nn.Module]:
    """Return the backbone (hidden states) and the head (logits) of a causal language model, adapters included.

    The first call for a model, its configuration and adapters compares head(hidden state) with its own logits on a few
    random tokens: two short forwards, which all processes make if the model is sharded.

    Raises:
        InputError: the model transforms its logits after the head, reads a learned prompt before the tokens, or has no
            separate backbone and head.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    assert isinstance(base, PreTrainedModel)
    backbone, head = base.base_model, base.get_output_embeddings()
    if backbone is base or head is None or not isinstance(backbone, PreTrainedModel):
        raise InputError(type(base).__name__, expected="a causal language model", found="no backbone with a head")
    settings = {name: value for name, value in vars(base.config).items() if not name.startswith("_")}
    state = f"{getattr(model, 'active_adapters', None)} {settings}"
    if _checked.get(model) != state:
        _check_logits(model, backbone, head)
        _checked[model] = state
    return backbone, head


@contextmanager
def frozen(model: PreTrainedModel | PeftModel) -> Iterator[None]:
    """While open, the model is in evaluation mode and no parameter requires a gradient; flags are restored after."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, required in flags:
            parameter.requires_grad_(required)


@torch.no_grad()
def _check_logits(model: PreTrainedModel | PeftModel, backbone: PreTrainedModel, head: nn.Module) -> None:
    """Raise InputError if log softmax(head(hidden state)) is not the log softmax of the model's own logits.

    A soft cap or a scale after the head makes them differ; no list of such options of configurations is complete.
    """
    name, generator = type(model).__name__, torch.Generator().manual_seed(0)
    ids = torch.randint(backbone.config.get_text_config().vocab_size, (1, TRIAL_TOKENS), generator=generator)
    inputs: dict[str, Any] = {"input_ids": ids.to(backbone.device), "use_cache": False}
    try:
        with frozen(model):  # dropout would differ between the two forwards, and use up random numbers
            logits = head(backbone(**inputs).last_hidden_state)
            expected = model(**inputs).logits[:, -TRIAL_TOKENS:]
    # Some architectures need more inputs, or have no kernel for the dtype; they raise any type of error.
    except Exception as error:
        first_line, *_ = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {first_line}"
        raise InputError(name, expected="a model that reads token ids alone", found=reason) from error
    # The margin is for kernels that add in no fixed order.
    margin = torch.finfo(logits.dtype).eps ** (2 / 3) * logits.nan_to_num(0, 0, 0).abs().max().item()
    wide = torch.promote_types(logits.dtype, torch.float32)
    ours, theirs = (values.to(wide).log_softmax(-1) for values in (logits, expected))
    if torch.isclose(ours, theirs, rtol=0, atol=margin, equal_nan=True).all():
        return
    worst = (ours - theirs).abs().argmax()
    raise InputError(
        name,
        expected=f"logits that are head(hidden state), and so log p {theirs.flatten()[worst]:.6g} of a trial token",
        found=f"log p {ours.flatten()[worst]:.6g}",
        fix="use a model without a soft cap or scale after the head, and without a learned prompt (prompt tuning)",
    )
