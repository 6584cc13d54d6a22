"""The projection of a gradient, which removes its component toward the hack, and cosines before and after.

Shapes: r coordinates of a module, k directions, M modules with k > 0; leading dimensions (...) are samples, or none.
g (..., r) is the gradient of a LOSS in one module, V (k, r) has orthonormal rows oriented toward the hack, c = V g.

    one_sided   g' = g - overshoot relu(c) V        two_sided   g' = g - overshoot c V
    shrunk      g norm(g') / norm(g), norms over all modules: the size of a projection without its direction

    u_m           = sum_i V_i / sqrt(k)                                a unit vector
    cos           = sum_m <u_m, g_m> / (sqrt(M) norm(g))               global, signed
    mean_cos      = mean over modules of <u_m, g_m> / norm(g_m)        modules with a gradient
    hackward_frac = norm(relu(V g)) / norm(g)                          over all modules

A module that lost all directions to the noise floor (k = 0) is not counted in M, while its gradient is part of norm(g).
A zero gradient has no direction: its cosines are NaN, never 0. Sums are float32, or float64 for float64.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from extraction.stacks import Stacks
from probe.settings.arms import SIDES
from probe.settings.words import Side

ROUNDING = 16  # a rest of g below ROUNDING * machine epsilon * norm(g) is rounding, not a gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosines:
    """Alignment of gradients with the directions, over all modules; every field has shape (...)."""

    cos: Tensor
    mean_cos: Tensor
    hackward_frac: Tensor
    norm: Tensor  # norm(g) over all modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Projected gradients {module: (..., r)} and the measures before and after the projection."""

    gradients: Mapping[str, Tensor]
    before: Cosines
    after: Cosines
    frac_fired: Tensor  # (...) share of the M modules where the projection removed something

    def measures(self) -> dict[str, Tensor]:
        """Return the measures by their wire names; each of shape (...)."""
        return {
            "cos_in": self.before.cos,
            "cos_out": self.after.cos,
            "mean_cos_in": self.before.mean_cos,
            "mean_cos_out": self.after.mean_cos,
            "hackward_frac_in": self.before.hackward_frac,
            "hackward_frac_out": self.after.hackward_frac,
            "frac_fired": self.frac_fired,
        }


def project(g: Tensor, V: Tensor, *, side: Side, overshoot: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return (g' (..., r), bool (...), True if something was removed); modules may be stacked."""
    g = _accumulate(g)
    V = V.to(g.dtype)
    removed = overshoot * SIDES[side](g @ V.mT)
    projected = g - removed @ V
    # A gradient inside the span of V leaves rounding only, which has no direction.
    before, after = (x.norm(dim=-1, keepdim=True) for x in (g, projected))
    rounding = after <= ROUNDING * torch.finfo(g.dtype).eps * before
    projected = torch.where(rounding, 0.0, projected)
    return projected, (removed != 0).any(-1)


def project_modules(
    gradients: Mapping[str, Tensor],
    directions: Mapping[str, Tensor],
    *,
    side: Side,
    overshoot: float = 1.0,
) -> Projection:
    """Project every module and measure the whole gradient before and after.

    Args:
        gradients: {module: (..., r)}; leading dimensions, when there are any, are samples measured one by one.
        directions: {module: (k, r)} for the same modules.
        side: a row of `probe.settings.arms.SIDES`; add new kinds of projection there.
        overshoot: factor on the part that is removed.

    Raises:
        ValueError: different modules, or no module with a direction.
    """
    groups = _groups(gradients, directions)
    projected: list[_Group] = []
    fired: list[Tensor] = []
    for group in groups:
        g, group_fired = project(group.g, group.V, side=side, overshoot=overshoot)
        projected.append(group._replace(g=g))
        if group.V.shape[1]:
            fired.append(group_fired)
    stacks = {group.names: group.g.reshape(len(group.names), *gradients[group.names[0]].shape) for group in projected}
    leading = _leading(gradients)
    return Projection(
        gradients=Stacks(stacks, list(gradients)),
        before=_cosines(groups, leading),
        after=_cosines(projected, leading),
        frac_fired=torch.cat(fired).to(groups[0].g.dtype).mean(0).reshape(leading),
    )


def restrict_modules(
    gradients: Mapping[str, Tensor], directions: Mapping[str, Tensor], subspaces: Mapping[str, Tensor]
) -> Projection:
    """Keep of each LoRA gradient G (d_out, rank) its part W^T W G in weighted output directions W (K, d_out).

    Args:
        gradients: {module: (r,)}, r = d_out rank, row by row.
        directions: {module: (k, r)}, for the measures.
        subspaces: {module: W}, for the same modules.
    """
    kept = {}
    for module, g in gradients.items():
        W = subspaces[module].to(_accumulate(g))
        kept[module] = (W.T @ (W @ _accumulate(g).view(W.shape[1], -1))).flatten()
    before, after = sample_cosines(gradients, directions), sample_cosines(kept, directions)
    return Projection(gradients=kept, before=before, after=after, frac_fired=torch.ones_like(before.cos))


def rescaled(projected: Projection, norm: Tensor) -> Projection:
    """Scale projected gradients {module: (..., r)} to a norm over all modules; no cosine changes, a 0 stays 0."""
    factor = _ratio(norm, projected.after.norm).nan_to_num(nan=1.0)
    gradients = {module: factor[..., None] * _accumulate(g) for module, g in projected.gradients.items()}
    return replace(projected, gradients=gradients, after=replace(projected.after, norm=norm))


def shrunk(gradients: Mapping[str, Tensor], projected: Projection) -> Projection:
    """Shrink the gradient {module: (..., r)} to the norm after the projection; no cosine changes."""
    before, norm = projected.before, projected.after.norm
    fired = (norm < before.norm).to(norm.dtype)
    return rescaled(Projection(gradients=gradients, before=before, after=before, frac_fired=fired), norm)


def removed_norm(
    gradients: Mapping[str, Tensor], directions: Mapping[str, Tensor], *, side: Side, overshoot: float = 1.0
) -> Tensor:
    """Return norm(g - g') over all modules, shape (...), for `project_modules` with these arguments.

    Raises:
        ValueError: as in `project_modules`.
    """
    squares = []
    for group in _groups(gradients, directions):
        squares.append((overshoot * SIDES[side](group.g @ group.V.mT)).square().sum((0, -1)))
    return torch.stack(squares).sum(0).sqrt().reshape(_leading(gradients))


def sample_cosines(gradients: Mapping[str, Tensor], directions: Mapping[str, Tensor]) -> Cosines:
    """Compute the signed cosines of each sample's gradient {module: (G, r)} with the directions {module: (k, r)}.

    Any leading shape works; without leading dimensions the fields are scalars.

    Raises:
        ValueError: different modules, or no module with a direction.
    """
    return _cosines(_groups(gradients, directions), _leading(gradients))


def haar_variance(gradients: Mapping[str, Tensor], directions: Mapping[str, Tensor]) -> Tensor:
    """Return the variance (...) of `cos` of fixed gradients for Haar-distributed V, independent by module.

    A uniform unit vector u of R^r has E u u^T = I / r, so that Var <u_m, g_m> = norm(g_m)^2 / r_m for any k, and

        Var cos = sum_m norm(g_m)^2 / r_m / (M norm(g)^2)

    Raises:
        ValueError: as in `sample_cosines`.
    """
    groups = _groups(gradients, directions)
    squares = [group.g.norm(dim=-1).square() for group in groups]  # (n, S) each
    expected, num_counted = torch.zeros_like(squares[0][0]), 0
    for group, square in zip(groups, squares, strict=True):
        if group.V.shape[1]:
            expected = expected + square.sum(0) / group.V.shape[2]
            num_counted += len(group.names)
    return _ratio(expected, num_counted * torch.cat(squares).sum(0)).reshape(_leading(gradients))


class _Group(NamedTuple):
    """The n modules with k directions of r coordinates."""

    names: tuple[str, ...]
    g: Tensor  # (n, S, r) gradients of S samples
    V: Tensor  # (n, k, r)


def _groups(gradients: Mapping[str, Tensor], directions: Mapping[str, Tensor]) -> list[_Group]:
    """Stack gradients {module: (..., r)} and directions {module: (k, r)} by (k, r); ... is flattened to S."""
    _check_modules(gradients, directions)
    stacked, groups = Stacks.of(gradients), []
    for names, V in Stacks.of(directions).stacks.items():
        g = _accumulate(stacked.rows(names))
        groups.append(_Group(names, g.reshape(len(names), -1, g.shape[-1]), V.to(g.dtype)))
    return groups


def _cosines(groups: Sequence[_Group], leading: torch.Size) -> Cosines:
    """Compute `sample_cosines` of stacked modules."""
    norms, counted_norms, dots, hackward = [], [], [], []
    for _, g, V in groups:
        norm = g.norm(dim=-1)  # (n, S)
        norms.append(norm)
        k = V.shape[1]
        if k:
            c = g @ V.mT  # (n, S, k)
            counted_norms.append(norm)
            dots.append(c.sum(-1) / math.sqrt(k))
            hackward.append(c.relu().square().sum(-1))
    norm, dot = torch.cat(norms).square().sum(0).sqrt(), torch.cat(dots)
    return Cosines(
        cos=_ratio(dot.sum(0), math.sqrt(len(dot)) * norm).reshape(leading),
        mean_cos=_ratio(dot, torch.cat(counted_norms)).nanmean(0).reshape(leading),
        hackward_frac=_ratio(torch.cat(hackward).sum(0).sqrt(), norm).reshape(leading),
        norm=norm.reshape(leading),
    )


def _leading(gradients: Mapping[str, Tensor]) -> torch.Size:
    """Return the shape of the samples, the same for all modules."""
    return next(iter(gradients.values())).shape[:-1]


def _accumulate(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return numerator / denominator, NaN for a denominator of 0."""
    return torch.where(
        denominator > 0, numerator / denominator.clamp_min(torch.finfo(denominator.dtype).tiny), torch.nan
    )


def _check_modules(gradients: Mapping[str, Tensor], directions: Mapping[str, Tensor]) -> None:
    if gradients.keys() != directions.keys():
        raise ValueError("gradients and directions name different modules")
    if not any(len(V) for V in directions.values()):
        raise ValueError("directions: every module lost all its directions to the noise floor, nothing to measure")
