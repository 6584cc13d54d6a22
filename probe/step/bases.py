"""`Bases`: the forward and backward passes of a step, which give per-sample gradients in every basis at once.

    bases.run(batch).gradients["svd"][module]       # (g, r)

Several ranks share out the samples: each rank holds the gradients of its own samples, while values per sample or per
token are joined and the same on all ranks. G samples, g of them this rank's (all of them with one rank), n completion
tokens of those, T tokens, d the hidden size, r coordinates of a module.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from extraction.adapters.frames import Frames
from extraction.adapters.trained import Trained
from extraction.batch import Batch
from extraction.gradients import Axis, SampleGradients, per_sample_gradients
from extraction.passes import score
from extraction.settings import Basis
from extraction.stacks import Stacks
from probe.step.additivity import batch_error, module_error, tapped
from probe.step.distributed import SOLO, World

Gradients = Mapping[Basis, Mapping[str, Tensor]]  # {basis: {module: (g, r)}}, or (r,) of the whole step


def axis(basis: Basis, directions: Mapping[str, Tensor]) -> Axis:
    """Join directions {module: (k, r)} into ONE unit vector u, so that <u, g> / norm(g) is the global cosine.

    u_m = sum_i V_i / sqrt(k M) in each of the M modules with k > 0.
    """
    kept = {module: V for module, V in directions.items() if len(V)}
    return basis, {module: V.sum(0) / math.sqrt(len(V) * len(kept)) for module, V in kept.items()}


def token_shares(token_dots: Tensor, norms: Tensor) -> Tensor:
    """Split the cosine of each sample over the positions of its rollout: s_it (G, T), float64, CPU.

        cos_i = sum_t s_it,    s_it = sum_m <u_m, product_mt> / norm(g_i)

    product_mt is the input of module m at t times the gradient of its output at t, so the share belongs to the position
    that READS token t. Attention carries the losses of later tokens back to t: prompt tokens have shares, the last
    token has none, and a share is not the effect of dropping a token. Shares of both signs may exceed the cosine.

    Args:
        token_dots: (G, T) <u, product_t>.
        norms: (G,) of the gradients that the products add up to; the rows of zero gradients are nan.
    """
    norms = norms.double().cpu()
    return token_dots.cpu() / torch.where(norms > 0, norms, torch.nan)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """A policy and the bases in which it is read: one pass serves all of them.

    Attributes:
        model: the policy's.
        frames: by basis, of the weights that the run starts with.
        trained: what moves the weights, in the one basis that is read then; None: they stay.
    """

    model: PreTrainedModel
    frames: Mapping[Basis, Frames]
    trained: Trained | None = None
    tokens_per_batch: int | None = None  # of a forward and backward; None = what fits the free memory
    world: World = SOLO  # the ranks that share out the samples of a step

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @contextmanager
    def read(self) -> Iterator[Mapping[Basis, Frames]]:
        """While open, the policy runs as cheaply as it can; gives the frames of the weights as they are now."""
        if self.trained is None:
            yield self.frames
        else:
            with self.trained.folded():
                yield {self.trained.basis: self.trained.frames()}

    def run(
        self,
        batch: Batch,
        token_weights: Tensor | None = None,
        axis: Axis | None = None,
        *,
        share: bool = False,
    ) -> SampleGradients:
        """Compute gradients (g, r) of -sum_t W_it logp_it in every basis, and (G, T) values of tokens; W is 1 if None.

        Args:
            batch: the G samples of the step, the same on every rank.
            token_weights: W.
            axis: asks for `token_dots` along it.
            share: only the sum over samples is asked for (`extraction.gradients.per_sample_gradients`).
        """
        local = self._local(batch)
        if token_weights is not None:
            # A rank's batch is padded to its own longest sample, which may be shorter than the step's.
            token_weights = token_weights[self.world.rows(len(batch)), : local.ids.shape[1]]
        with self.read() as frames:
            samples = per_sample_gradients(
                self.model,
                frames,
                local,
                token_weights=token_weights,
                tokens_per_batch=self.tokens_per_batch,
                axis=axis,
                agree=self._agree,
                share=share,
            )
        return replace(
            samples,
            token_logprobs=self._joined(samples.token_logprobs, batch),
            token_dots=None if samples.token_dots is None else self._joined(samples.token_dots, batch),
        )

    def score(self, batch: Batch) -> Tensor:
        """One forward of the policy: (G, T) log-probabilities, 0 off the completion."""
        local = self._local(batch)
        with self.read():
            scores = score(self.model, local, tokens_per_batch=self.tokens_per_batch, agree=self._agree)
        return self._joined(scores, batch)

    def total(self, scale: Tensor, gradients: Gradients) -> Gradients:
        """Return sum_i scale_i g_i over the samples of all ranks, {basis: {module: (r,)}}, from scale (G,)."""
        local = weighted_sums(scale[self.world.rows(len(scale))], gradients)
        return {basis: sums.map(self.world.sum) for basis, sums in local.items()}

    def run_checked(
        self, batch: Batch, *, turn: int, whole: bool, axis: Axis | None = None
    ) -> tuple[SampleGradients, dict[Basis, float]]:
        """The pass with unit weights, and its additivity error in every basis (see probe.step.additivity).

        Every rank checks its own samples; the error is the largest of any rank.

        Args:
            batch: as `run`.
            turn: picks the module that is compared within the pass, the modules taking turns.
            whole: also compare all modules, with uneven sample weights, by ordinary batch backwards in each basis.
            axis: as `run`.
        """
        first = next(iter(self.frames.values()))
        module = [*first][turn % len(first)]
        layer = first.layers[module]
        with tapped(layer) as held:
            unit = self.run(batch, axis=axis)
        local = self._local(batch)
        # Weights that all differ: equal ones would not show a token that was credited to the wrong sample.
        uneven = torch.tensor([(-1.0) ** i * (i + 1) for i in range(len(local))], device=batch.ids.device)
        totals = weighted_sums(uneven, unit.gradients) if whole else {}
        errors: dict[Basis, float] = {}
        with self.read() as read:
            for basis, frames in read.items():
                errors[basis] = module_error(frames[module], held, unit.gradients[basis][module])
                if whole:
                    error = batch_error(
                        self.model,
                        frames,
                        local,
                        uneven[:, None].expand(local.ids.shape),
                        totals[basis],
                        tokens_per_batch=self.tokens_per_batch,
                        agree=self._agree,
                    )
                    errors[basis] = max(errors[basis], error)
        errors_by_rank = self.world.gather(errors)
        return unit, {basis: max(rank_errors[basis] for rank_errors in errors_by_rank) for basis in errors}

    def _local(self, batch: Batch) -> Batch:
        """The samples of this rank."""
        rows = self.world.rows(len(batch))
        return batch.rows(rows.start, rows.stop)

    def _joined(self, part: Tensor, batch: Batch) -> Tensor:
        """(G, T) from the rows of every rank, each padded to its own longest sample."""
        return self.world.join(F.pad(part, (0, batch.ids.shape[1] - part.shape[1])), len(batch))

    def _agree(self, num_passes: int) -> int:
        """Return the number of passes to make; with a sharded base, the largest number that any rank needs.

        A forward then gathers weights from all ranks, which would wait for one another forever otherwise.
        """
        return max(self.world.gather(num_passes)) if self.world.shards_base else num_passes


def weighted_sums(scale: Tensor, gradients: Gradients) -> dict[Basis, Stacks]:
    """Return sum_i scale_i g_i, {basis: {module: (r,)}}, from scale (G,) and per-sample gradients."""
    stacks: dict[Basis, Stacks] = {basis: Stacks.of(modules) for basis, modules in gradients.items()}
    return {basis: of_basis.map(lambda g: scale.to(g.device, g.dtype) @ g) for basis, of_basis in stacks.items()}
