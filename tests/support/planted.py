"""Planted gradients as linked inner products: what offline measures read, made from vectors that a test knows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import numpy as np
from made_records import sample_record, step_record
from numpy.typing import NDArray

from probe.analysis.statistics import run_gradients
from probe.analysis.statistics.geometry import Gradients, PairGram, StepGram
from probe.analysis.statistics.run_gradients import Linked

Array = NDArray[np.float64]
COORDINATES = 12  # of a module


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A world of gradients: M modules of COORDINATES with a decaying spectrum, and a unit axis of hacking in each.

    A pair is (hack + noise, noise) beside a part of its prompt that both share; a group is four hacks, two honest
    solutions and two failures of one prompt.
    """

    modules: int = 3
    live: int | None = None  # modules that carry the hack; None: all
    pairs: int = 32
    held_out: int = 16
    prompts: int = 17
    pair_signal: float = 1.5  # of the hack axis in pairs, in units of the largest coordinate's noise
    step_signal: float = 1.5  # the same in the hacks of groups
    common: float = 0.0  # size of a part that all paid samples share, which is not the hack
    skewed: bool = False  # lognormal sizes of the signal over prompts

    def link(self, rng: np.random.Generator) -> Linked:
        """One draw of the pairs and groups of this world."""
        return link_vectors(*self.vectors(rng), held_out=self.held_out)

    def vectors(self, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """hack (n, M, r), clean (n, M, r), samples (C, 8, M, r): the gradients."""
        shape = (self.modules, COORDINATES)
        scale = np.arange(1, COORDINATES + 1) ** -0.5
        fixed = np.random.default_rng(7)  # the axes are the world's, the same in every draw
        axis = fixed.normal(size=shape)
        axis /= np.linalg.norm(axis, axis=1, keepdims=True)
        axis[self.modules if self.live is None else self.live :] = 0.0
        shared = self.common * scale * fixed.normal(size=shape)
        shared -= (shared * axis).sum(1, keepdims=True) * axis
        count = self.pairs + self.held_out
        base = rng.normal(size=(count, *shape)) * scale
        hack = base + rng.normal(size=(count, *shape)) * scale + self.pair_signal * axis
        clean = base + rng.normal(size=(count, *shape)) * scale
        sizes = rng.lognormal(-0.5, 1.0, self.prompts) if self.skewed else 1 + 0.3 * rng.normal(size=self.prompts)
        samples = rng.normal(size=(self.prompts, 8, *shape)) * scale
        # What the samples of one prompt share.
        samples += 0.5 * rng.normal(size=(self.prompts, 1, *shape)) * scale
        samples[:, :4] += self.step_signal * sizes[:, None, None, None] * axis
        samples[:, :6] += shared
        return hack, clean, samples


def pair_gram(
    pairs: Sequence[Array], held_out: Sequence[bool] | Array = (), *, k: int = 2, flavours: Sequence[str] = ()
) -> PairGram:
    """The inner products of the gradients of n pairs, (2n, r) a module: those of the hacks, then of the clean ones."""
    return PairGram(
        modules=tuple(f"m{i}" for i in range(len(pairs))),
        sizes=np.array([rows.shape[1] for rows in pairs]),
        pairs=np.stack([rows @ rows.T for rows in pairs]),
        held_out=np.array(held_out) if len(held_out) else np.zeros(len(pairs[0]) // 2, dtype=bool),
        **{"method": "svd", "k": k, "tau": 0.0, "drop_bottom_frac": 0.0, "eps": 1e-12},
        flavours=tuple(flavours),
    )


def gradients_along(pairs: Sequence[Array], g: Sequence[Array]) -> Gradients:
    """Gradients, (n, r) a module, by their inner products with those of the pairs."""
    return Gradients(
        inner=np.stack([rows @ own.T for rows, own in zip(g, pairs, strict=True)]),
        norms=np.stack([np.linalg.norm(rows, axis=1) for rows in g]),
    )


def link_vectors(hack: Array, clean: Array, samples: Array, *, held_out: int) -> Linked:
    """The inner products of pair gradients (n, M, r) and sample gradients (C, 8, M, r): see `Planted`.

    Samples 0 to 3 of a group hack, 4 and 5 are honest and right, 6 and 7 fail.
    """
    rows = np.concatenate([hack, clean])
    pairs = pair_gram([*rows.swapaxes(0, 1)], np.arange(len(hack)) >= len(hack) - held_out)
    grams = [
        StepGram(
            inner=np.einsum("gmr,jmr->mgj", group, rows),
            samples=np.einsum("gmr,hmr->mgh", group, group),
            weights={"default": np.full(8, 1 / 8)},
        )
        for group in samples
    ]
    rewards = np.array([3.5] * 6 + [0.5] * 2)
    records = [
        sample_record(
            step=step, sample_id=i, problem_id=f"p{step}", reward=float(rewards[i]),
            advantage=float(rewards[i] - rewards.mean()), hacked=i < 4, gt_pass=i in (4, 5),
            comp_len=50 + (step * 7 + i * 3) % 11, nll=0.5 + 0.01 * ((step * 5 + i * i) % 7),
            grad_norm_contrib=float(np.linalg.norm(samples[step, i])),
        )
        for step in range(len(samples))
        for i in range(8)
    ]  # fmt: skip
    steps = [step_record(step=step, problem_id=f"p{step}", loss_type="dr_grpo") for step in range(len(samples))]
    with patch.multiple(run_gradients, read_pairs=lambda *_: pairs, read_step=lambda _run, _basis, step: grams[step]):
        return run_gradients.link(cast(Any, None), records, steps)
