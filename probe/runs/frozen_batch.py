"""The frozen probe batch: held-out pairs that no training touches, scored under the policy against the base.

    logprob_hack, logprob_clean    mean log-probability per token of the hack and the clean completions
    margin                         mean over pairs of (sum logp(hack) - sum logp(clean)) now, minus that of the base
    kl_from_base                   mean k3 per token of both (an estimate under the pairs' law, not the policy's)
    cos_moved, hackward_frac_moved of start - now, which points like a sum of gradients, with the first directions
    hackward_q95                   95th percentile of hackward_frac_moved when the directions are Haar-distributed (N1)

The reference is fixed: base policy, pairs and directions are those of the start, whatever the run refreshes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import Tensor

from extraction.adapters.interface import Coordinates
from extraction.library import pair_batch
from extraction.pairs import Pair
from extraction.passes import score
from probe.objective.kl import kl_terms
from probe.records.records import nullable
from probe.step.projection import haar_hackward_quantile, sample_cosines
from replay_pools.policy.load import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenMeasure:
    """One policy on the frozen probe batch; nats."""

    num_pairs: int
    logprob_hack: float
    logprob_clean: float
    margin: float
    kl_from_base: float
    cos_moved: float | None  # None where the policy has not moved
    hackward_frac_moved: float | None
    hackward_q95: float | None

    def to_json(self) -> dict[str, Any]:
        """The wire form."""
        return asdict(self)


@final
class FrozenBatch:
    """Held-out pairs and the directions of the start.

    Args:
        policy: renders the pairs.
        coordinates: of the policy, at the base while this is made.
        pairs: held out from the extraction; at least one.
        vectors: {module: (k, r)} of the start.
    """

    def __init__(
        self, policy: Policy, coordinates: Coordinates, pairs: Sequence[Pair], vectors: Mapping[str, Tensor]
    ) -> None:
        self._batch = pair_batch(policy, pairs)
        self._coordinates, self._vectors, self._num_pairs = coordinates, vectors, len(pairs)
        self._start = coordinates.values()
        self._base = score(coordinates, self._batch)

    def measure(self) -> FrozenMeasure:
        """The policy as it is."""
        n, mask = self._num_pairs, self._batch.completion_mask
        logprobs = score(self._coordinates, self._batch)
        kl, _ = kl_terms(logprobs, self._base, mask)
        gained = (logprobs - self._base).sum(1).double()
        moved = {module: self._start[module] - value for module, value in self._coordinates.values().items()}
        cosines = sample_cosines(moved, self._vectors)
        return FrozenMeasure(
            num_pairs=n,
            logprob_hack=float(logprobs[:n].double().sum() / mask[:n].sum()),
            logprob_clean=float(logprobs[n:].double().sum() / mask[n:].sum()),
            margin=float((gained[:n] - gained[n:]).mean()),
            kl_from_base=float(kl[mask].double().mean()),
            cos_moved=nullable(float(cosines.cos)),
            hackward_frac_moved=nullable(float(torch.as_tensor(cosines.hackward_frac))),
            hackward_q95=nullable(haar_hackward_quantile(moved, self._vectors)),
        )
