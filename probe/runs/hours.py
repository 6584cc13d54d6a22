"""How long a run takes on a machine: counted operations over its speed (`probe.settings.machines`). No weights needed.

    gradient   rows ((p + c)(4 N + taps) + 4 c V h + 6 L a (p + c)^2)     forward, and backward to the inputs
    forward    rows ((p + c) 2 N + 2 c V h + 2 L a (p + c)^2)             a reference of the loss
    sampling   a forward; the weights are read once a token of a batch, the cache once a token of a row
    svd        6 n m^2 + 20 m^3 a module of m x n, m <= n

N numbers of the matrices that a token goes through (of experts those that are chosen), V vocabulary, h hidden size, L
layers, a = heads x head size, p and c mean tokens of prompt and completion. taps: U^T dL/dy and Vh x of the adapted
modules, as `extraction.adapters.frames` computes them; A x and its outer product of LoRA.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from transformers import PreTrainedModel

from extraction.adapters.targets import find_targets, weight_matrix
from extraction.words import Basis
from probe.settings.machines import SAMPLING, Machine
from probe.settings.training import ModelConfig
from probe.settings.words import Dtype

CACHE_BYTES = 2  # of a number in the cache of keys and values
BATCH = 256  # rows that sample at a time: assumed
PRODUCT = 1024  # size of the matrices whose product is timed
CPU_SVD_SHARE = 1.0  # of the speed of products: measured for 2560 x 2560 on one core, 80 of 79 GFLOP/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sequences, by their mean lengths in tokens."""

    number: int
    prompt: float
    completion: float

    @property
    def tokens(self) -> int:
        """Of all sequences."""
        return round(self.number * (self.prompt + self.completion))

    @classmethod
    def of(cls, prompts: Sequence[int], completions: Sequence[int]) -> "Rows":
        """Of the lengths of each."""
        return cls(number=len(prompts), prompt=fmean(prompts or [0]), completion=fmean(completions or [0]))


class Flops:
    """What passes through a model cost.

    Args:
        model: on the meta device; only shapes are read.
        config: dtype, targets and ranks.
        bases: of the arms that are measured.
    """

    def __init__(self, model: PreTrainedModel, config: ModelConfig, bases: Collection[Basis]) -> None:
        text, self._rank = model.config.get_text_config(), config.svd_rank
        self._dtype: Dtype = config.dtype
        self._shapes = [weight_matrix(model.get_submodule(m), m).shape for m in find_targets(model, config.targets)]
        self._head = text.vocab_size * text.hidden_size
        heads = text.num_attention_heads
        head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
        self._attention = text.num_hidden_layers * heads * head_size
        kept = getattr(text, "num_key_value_heads", None) or heads
        self._cache = 2 * text.num_hidden_layers * kept * head_size * CACHE_BYTES
        self._bytes = sum(parameter.nbytes for parameter in model.parameters())
        self._numbers = 0.0
        apart = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        head = model.get_output_embeddings()
        apart |= set() if head is None else {id(head.weight)}
        for parameter in model.parameters():
            if parameter.ndim >= 2 and id(parameter) not in apart:
                # A stack of experts, of which a token goes through some.
                experts = len(parameter) if parameter.ndim == 3 else 1
                chosen = min(getattr(text, "num_experts_per_tok", None) or experts, experts)
                self._numbers += parameter.numel() * chosen / experts
        self._taps = 0
        for d_out, d_in in self._shapes:
            small = min(d_out, d_in)
            if "svd" in bases:
                self._taps += 2 * min(small, self._rank or small) * (d_out + d_in if d_out == d_in else 2 * small)
            if "lora" in bases:
                self._taps += 2 * config.lora_rank * (d_out + d_in)

    def gradient(self, rows: Rows) -> float:
        """Operations of a forward and a backward with the gradients of the samples."""
        tokens = rows.prompt + rows.completion
        blocks = tokens * (4 * self._numbers + self._taps) + 6 * self._attention * tokens**2
        return rows.number * (blocks + 4 * rows.completion * self._head)

    def forward(self, rows: Rows) -> float:
        """Operations of a forward alone."""
        tokens = rows.prompt + rows.completion
        blocks = tokens * 2 * self._numbers + 2 * self._attention * tokens**2
        return rows.number * (blocks + 2 * rows.completion * self._head)

    def seconds(self, flops: float, machine: Machine) -> float:
        """Of operations in passes."""
        return machine.seconds(flops, self._dtype)

    def sampling(self, rows: Rows, machine: Machine) -> float:
        """Seconds: operations, and what a token has to wait for of the memory."""
        weights = math.ceil(rows.number / BATCH) * rows.completion * self._bytes
        cache = rows.number * rows.completion * (rows.prompt + rows.completion / 2) * self._cache
        operations = machine.seconds(self.forward(rows), self._dtype, SAMPLING)
        return operations + (weights + cache) / (machine.bandwidth * SAMPLING)

    def svd(self, machine: Machine) -> float:
        """Seconds of the factors of all modules, where no cache has them."""
        dtype: Dtype = "float64" if self._dtype == "float64" else "float32"
        seconds = 0.0
        for shape in self._shapes:
            m, n = sorted(shape)
            seconds += machine.seconds(6 * n * m**2 + 20 * m**3, dtype, machine.svd_share)
        return seconds


def this_cpu(dtype: Dtype) -> Machine:
    """This machine's CPU, by products of matrices and a copy that are timed now (about a tenth of a second)."""
    flops: dict[Dtype, float] = {}
    names: list[Dtype] = ["float32", dtype]  # of the SVD, and of the passes
    for name in names:
        matrix = torch.ones(PRODUCT, PRODUCT, dtype=getattr(torch, name))
        flops[name] = 2 * PRODUCT**3 / _seconds(partial(torch.matmul, matrix, matrix))
    copied = torch.ones(PRODUCT, PRODUCT)
    bandwidth = 2 * copied.nbytes / _seconds(copied.clone)
    return Machine(name="CPU like this one", flops=flops, bandwidth=bandwidth, svd_share=CPU_SVD_SHARE)


def _seconds(work: Callable[[], object]) -> float:
    """The fastest of three times."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def replay_hours(cost: Flops, machine: Machine, *, steps: Sequence[Rows], pairs: Sequence[Rows]) -> dict[str, float]:
    """{what: hours} of a first replay.

    Args:
        steps: the rollouts of each.
        pairs: completions of every set of pairs whose gradients are made.
    """
    seconds = {
        "SVDs, once": cost.svd(machine),
        "gradients of the pairs, once": sum(cost.seconds(cost.gradient(rows), machine) for rows in pairs),
        "steps": sum(cost.seconds(cost.gradient(rows), machine) for rows in steps),
    }
    return {what: number / 3600 for what, number in seconds.items()}


def training_hours(
    cost: Flops, machine: Machine, *, steps: int, step: Rows, pairs: Sequence[Rows], references: int, evaluated: Rows
) -> dict[str, float]:
    """{what: hours} of a first training.

    Args:
        steps: how many.
        step: what one samples, at most.
        pairs: as of a replay.
        references: forward passes of a step beside its gradients.
        evaluated: the rollouts of all evaluations, at most.
    """
    once = replay_hours(cost, machine, steps=[], pairs=pairs)
    passes = cost.gradient(step) + references * cost.forward(step)
    seconds = {
        "sampling": steps * cost.sampling(step, machine),
        "gradients": steps * cost.seconds(passes, machine),
        "evaluations": cost.sampling(evaluated, machine),
    }
    del once["steps"]
    return once | {what: number / 3600 for what, number in seconds.items()}
