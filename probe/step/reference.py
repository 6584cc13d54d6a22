"""Reference policies of a KL penalty: points in the coordinates of the policy, or recorded log-probabilities.

    base      the coordinates at the start: exactly the policy that the run starts from, the base model or what
              `model.adapter` makes of it
    ema       reference <- decay reference + (1 - decay) policy after every step; decay 0: synced
    recorded  the log-probabilities that the rollouts were sampled with

The record names the reference: no recorded or cached value stands in for one that moves. To add one: its word in
`Reference` of `probe.settings.words`, its point in `References.scores`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor

from extraction.adapters.trained import Trained
from extraction.batch import Batch
from probe.step.bases import Bases
from replay_pools.base.errors import InputError


@final
class References:
    """Log-probabilities of the references.

    Args:
        trained: the policy at the start; None for a policy that never moves: it equals its base and its EMA.
        ema_decay: of the EMA, in [0, 1].
    """

    def __init__(self, trained: Trained | None, *, ema_decay: float = 0.99) -> None:
        self._trained, self._decay = trained, ema_decay
        self._base = {} if trained is None else trained.values()
        self._ema = self._base

    def scores(
        self, names: Iterable[str], bases: Bases, batch: Batch, current: Tensor, recorded: Tensor | None
    ) -> dict[str, Tensor]:
        """Return {name: (G, T) log-probabilities, 0 off the completion} of each reference on a batch.

        Args:
            names: base, ema, recorded.
            bases: of the policy; they score.
            current: (G, T) log-probabilities of the policy; a reference at the same point has them, too.
            recorded: (G, T) of the sampler, or None.

        Raises:
            InputError: `recorded` is asked for and there are none.
        """
        scores: dict[str, Tensor] = {}
        values = {} if self._trained is None else self._trained.values()
        for name in dict.fromkeys(names):
            if name == "recorded":
                scores[name] = needed(recorded)
                continue
            point = self._base if name == "base" else self._ema
            # At the same point a forward would give the same numbers: this saves it, and makes the KL exactly 0.
            if self._trained is None or all(torch.equal(values[module], point[module]) for module in values):
                scores[name] = current
                continue
            with self._trained.at(point):
                scores[name] = bases.score(batch)
        return scores

    def update(self) -> None:
        """Move the EMA toward the policy after an optimizer step."""
        if self._trained is not None:
            policy = self._trained.values()
            self._ema = {m: torch.lerp(value, policy[m], 1 - self._decay) for m, value in self._ema.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the EMA, for a checkpoint."""
        return {"ema": dict(self._ema)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`."""
        self._ema = {module: value.to(self._base[module]) for module, value in state["ema"].items()}


def needed(recorded: Tensor | None) -> Tensor:
    """Return the recorded log-probabilities; InputError if the rollouts have none."""
    if recorded is None:
        raise InputError(
            "log-probabilities of the rollouts",
            expected="recorded ones for old_logprobs or reference `recorded`",
            found="a rollout without",
            fix="use a pool with a sampler in its manifest, or old_logprobs=current and reference base",
        )
    return recorded
