"""Which tokens a cosine comes from: its split over the positions of a rollout.

A module's gradient is a sum over positions t of products of what the module read at t and what came back to its output
at t (extraction.adapters), so that with the unit vectors u_m of M modules

    cos_i = sum_t s_it,    s_it = sum_m <u_m, product_mt> / (sqrt(M) norm(g_i))

s_it belongs to the position at which the product arises: where token t is READ and token t + 1 predicted. It is not
the effect of the loss of one token: attention carries the losses of all later completion tokens back to t, which is why
prompt tokens have shares, and the last token, which predicts nothing, has none. Nor is it what a rollout without token
t would give. A share can be larger than the cosine itself, since shares of both signs add up to it.

G samples, T tokens, r coordinates of a module, k directions, M modules with k > 0.


Forward and backward passes of a step: per-sample gradients in every basis at once.

Several ranks share out the samples: each has the gradients of its own, and all have what is one number a sample or
token. G samples, g of them this rank's (all where there is one rank), n completion tokens of those, T tokens, d the
hidden size, r coordinates of a module.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from extraction.adapters.interface import Coordinates
from extraction.adapters.stacked import StackedCoordinates
from extraction.batch import Batch
from extraction.gradients import Penalty, per_sample_gradients
from extraction.logprobs import scatter_tokens
from extraction.scoring import TokenScores, score
from extraction.words import Basis
from probe.step.checks import batch_error, module_error, tapped
from probe.step.distributed import SOLO, World, whole_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The directions of an arm as ONE unit vector over all modules: cos = <axis, g> / norm(g)."""

    basis: Basis
    vectors: dict[str, Tensor]  # {module: (r,)} of the modules that keep a direction


def axis(basis: Basis, directions: Mapping[str, Tensor]) -> Axis:
    """sum_i V_i / sqrt(k M) of every module with directions (k, r), k > 0."""
    kept = {module: V for module, V in directions.items() if len(V)}
    return Axis(basis=basis, vectors={module: V.sum(0) / math.sqrt(len(V) * len(kept)) for module, V in kept.items()})


def token_shares(token_dots: Tensor, norms: Tensor) -> Tensor:
    """s_it (G, T), float64 on the CPU; NaN in the rows of samples without a gradient.

    Args:
        token_dots: (G, T) <axis, product_t>.
        norms: (G,) of the gradients that the products add up to.
    """
    norms = norms.double().cpu()
    return token_dots.cpu() / torch.where(norms > 0, norms, torch.nan)[:, None]


Gradients = Mapping[Basis, Mapping[str, Tensor]]  # {basis: {module: (g, r)}}, or (r,) of the whole step


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPass:
    """One forward and backward."""

    gradients: Gradients  # (g, r) of -sum_t W_it logp_it + penalty_i
    token_logprobs: Tensor  # (G, T), 0 off the completion
    nll: Tensor  # (G,) -sum_t logp_it
    token_dots: Tensor | None  # (G, T) <axis, what position t adds to g_i>; None where none was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """The adapted copies of one policy: one for each basis, several only where all are at zero."""

    coordinates: Sequence[Coordinates]
    tokens_per_batch: int | None = None  # of a forward and backward; None = what fits the free memory
    world: World = SOLO  # the ranks that share out the samples of a step

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.coordinates[0].model.parameters()).device

    def run(
        self,
        batch: Batch,
        token_weights: Tensor | None = None,
        penalty: Penalty | None = None,
        axis: Axis | None = None,
    ) -> GroupPass:
        """Per-sample gradients of -sum_t W_it logp_it + penalty_i in every basis; W (G, T) is 1 when None.

        Args:
            penalty: counts the completion tokens of this rank's samples alone.
            axis: asks for `token_dots` along it.
        """
        one = self.coordinates[0] if len(self.coordinates) == 1 else StackedCoordinates(self.coordinates)
        direction = None if axis is None else axis.vectors
        if axis is not None and isinstance(one, StackedCoordinates):
            direction = one.embed([own.basis for own in self.coordinates].index(axis.basis), axis.vectors)
        mine = self._mine(batch)
        weights = None if token_weights is None else token_weights[self.world.rows(len(batch)), : mine.ids.shape[1]]
        found = per_sample_gradients(
            one,
            mine,
            token_weights=weights,
            penalty=penalty,
            tokens_per_batch=self.tokens_per_batch,
            direction=direction,
            agree=self._agree,
        )
        parts = one.split(found.gradients) if isinstance(one, StackedCoordinates) else [found.gradients]
        gradients: Gradients = {own.basis: part for own, part in zip(self.coordinates, parts, strict=True)}
        return GroupPass(
            gradients=gradients,
            token_logprobs=self._whole(found.token_logprobs, batch),
            nll=self.world.join(found.nll, len(batch)),
            token_dots=None if found.token_dots is None else self._whole(found.token_dots, batch),
        )

    def score(self, batch: Batch) -> TokenScores:
        """Of the policy as it is: (G, T) log-probabilities, and the (n, d) states of this rank's samples."""
        mine = self._mine(batch)
        found = score(self.coordinates[0], mine, tokens_per_batch=self.tokens_per_batch, agree=self._agree)
        return TokenScores(token_logprobs=self._whole(found.token_logprobs, batch), states=found.states)

    def scatter(self, values: Tensor, batch: Batch) -> Tensor:
        """(G, T), 0 off the completion, from (n,) of every rank's completion tokens."""
        return self._whole(scatter_tokens(values, self._mine(batch).completion_mask), batch)

    def total(self, scale: Tensor, gradients: Gradients) -> Gradients:
        """sum_i scale_i g_i over the samples of all ranks, {basis: {module: (r,)}}, from scale (G,)."""
        part = weighted_sums(scale[self.world.rows(len(scale))], gradients)
        if self.world.size == 1:
            return part
        vectors = [vector for own in part.values() for vector in own.values()]
        summed = iter(self.world.sum(torch.cat(vectors)).split([len(vector) for vector in vectors]))
        return {basis: {module: next(summed) for module in own} for basis, own in part.items()}

    def run_checked(
        self, batch: Batch, *, turn: int, whole: bool, axis: Axis | None = None
    ) -> tuple[GroupPass, dict[Basis, float]]:
        """The pass with unit weights, and its additivity error in every basis (see probe.step.checks).

        Every rank checks its own samples; the error is the largest of any rank.

        Args:
            turn: picks the module that is compared within the pass.
            whole: also compare all modules, with uneven sample weights, by one ordinary batch backward a basis.
            axis: as `run`.
        """
        modules = list(self.coordinates[0].sizes)
        module = modules[turn % len(modules)]
        with tapped(self.coordinates[0].layers[module]) as held:
            unit = self.run(batch, axis=axis)
        mine = self._mine(batch)
        uneven = torch.tensor([(-1.0) ** i * (i + 1) for i in range(len(mine))], device=batch.ids.device)
        totals = weighted_sums(uneven, unit.gradients) if whole else {}
        errors: dict[Basis, float] = {}
        for own in self.coordinates:
            with whole_weights(own.model, own.layers[module]):
                errors[own.basis] = module_error(own, module, held, unit.gradients[own.basis][module])
            if whole:
                error = batch_error(own, mine, uneven[:, None].expand(mine.ids.shape), totals[own.basis])
                errors[own.basis] = max(errors[own.basis], error)
        found = self.world.gather(errors)
        return unit, {basis: max(part[basis] for part in found) for basis in errors}

    def _mine(self, batch: Batch) -> Batch:
        """The samples of this rank."""
        rows = self.world.rows(len(batch))
        return batch.rows(rows.start, rows.stop)

    def _whole(self, part: Tensor, batch: Batch) -> Tensor:
        """(G, T) from what every rank has of its own samples."""
        return self.world.join(F.pad(part, (0, batch.ids.shape[1] - part.shape[1])), len(batch))

    def _agree(self, num_passes: int) -> int:
        """How many passes to make: as many as any rank where the base is sharded."""
        return max(self.world.gather(num_passes)) if self.world.shards_base else num_passes


def weighted_sums(scale: Tensor, gradients: Gradients) -> Gradients:
    """sum_i scale_i g_i: {basis: {module: (r,)}} from scale (G,) and per-sample gradients."""
    return {basis: {m: scale.to(g.device, g.dtype) @ g for m, g in own.items()} for basis, own in gradients.items()}
