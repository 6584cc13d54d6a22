"""Which tokens of a completion are planning tokens, for a policy's tokenizer."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from probe.objective.credit import planning_tokens
from probe.runs.pieces import Pieces


class PlanningMarker:
    """Marks completion tokens that lie on planning phrases (`probe.objective.credit.planning_tokens`)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, phrases: Sequence[str]) -> None:
        self._pieces, self._phrases = Pieces(tokenizer), tuple(phrases)

    def __call__(self, completion_ids: Sequence[int]) -> list[bool]:
        """One mark for each token."""
        return planning_tokens([self._pieces(token) for token in completion_ids], self._phrases)
