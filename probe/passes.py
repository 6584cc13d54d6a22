"""Forward and backward passes of a group: per-sample gradients in every basis at once.

G samples, T tokens, r coordinates of a module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from extraction.adapters.coordinates import Coordinates
from extraction.adapters.stacked import StackedCoordinates
from extraction.batch import Batch
from extraction.gradients import Penalty, per_sample_gradients
from extraction.vocabulary import Basis
from probe.additivity import batch_error, module_error, tapped
from probe.attribution import Axis

Gradients = Mapping[Basis, Mapping[str, Tensor]]  # {basis: {module: (G, r)}}, or (r,) of the whole group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPass:
    """One forward and backward."""

    gradients: Gradients  # (G, r) of -sum_t W_it logp_it + penalty_i
    token_logprobs: Tensor  # (G, T), 0 off the completion
    nll: Tensor  # (G,) -sum_t logp_it
    token_dots: Tensor | None  # (G, T) <axis, what position t adds to g_i>; None where none was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Bases:
    """The adapted copies of one policy: one for each basis, several only where all are at zero."""

    coordinates: Sequence[Coordinates]
    tokens_per_batch: int | None = None  # of a forward and backward; None = what fits the free memory

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
            axis: asks for `token_dots` along it.
        """
        one = self.coordinates[0] if len(self.coordinates) == 1 else StackedCoordinates(self.coordinates)
        direction = None if axis is None else axis.vectors
        if axis is not None and isinstance(one, StackedCoordinates):
            direction = one.embed([own.basis for own in self.coordinates].index(axis.basis), axis.vectors)
        found = per_sample_gradients(
            one,
            batch,
            token_weights=token_weights,
            penalty=penalty,
            tokens_per_batch=self.tokens_per_batch,
            direction=direction,
        )
        parts = one.split(found.gradients) if isinstance(one, StackedCoordinates) else [found.gradients]
        gradients: Gradients = {own.basis: part for own, part in zip(self.coordinates, parts, strict=True)}
        return GroupPass(
            gradients=gradients, token_logprobs=found.token_logprobs, nll=found.nll, token_dots=found.token_dots
        )

    def run_checked(
        self, batch: Batch, *, turn: int, whole: bool, axis: Axis | None = None
    ) -> tuple[GroupPass, dict[Basis, float]]:
        """The pass with unit weights, and its additivity error in every basis (see probe.additivity).

        Args:
            turn: picks the module that is compared within the pass.
            whole: also compare all modules, with uneven sample weights, by one ordinary batch backward a basis.
            axis: as `run`.
        """
        modules = list(self.coordinates[0].sizes)
        module = modules[turn % len(modules)]
        with tapped(self.coordinates[0].layers[module]) as held:
            unit = self.run(batch, axis=axis)
        uneven = torch.tensor([(-1.0) ** i * (i + 1) for i in range(len(batch))], device=batch.ids.device)
        totals = weighted_sums(uneven, unit.gradients) if whole else {}
        errors: dict[Basis, float] = {}
        for own in self.coordinates:
            errors[own.basis] = module_error(own, module, held, unit.gradients[own.basis][module])
            if whole:
                error = batch_error(own, batch, uneven[:, None].expand(batch.ids.shape), totals[own.basis])
                errors[own.basis] = max(errors[own.basis], error)
        return unit, errors


def weighted_sums(scale: Tensor, gradients: Gradients) -> Gradients:
    """sum_i scale_i g_i: {basis: {module: (r,)}} from scale (G,) and per-sample gradients."""
    return {basis: {m: scale.to(g.device, g.dtype) @ g for m, g in own.items()} for basis, own in gradients.items()}
