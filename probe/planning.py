"""Which tokens of a completion are planning tokens, for a policy's tokenizer."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from probe.credit import planning_tokens


class PlanningMarker:
    """Marks completion tokens that lie on planning phrases (`probe.credit.planning_tokens`)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, phrases: Sequence[str]) -> None:
        self._tokenizer, self._phrases = tokenizer, tuple(phrases)
        self._anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._pieces: dict[int, str] = {}

    def __call__(self, completion_ids: Sequence[int]) -> list[bool]:
        """One mark for each token."""
        return planning_tokens([self._piece(token) for token in completion_ids], self._phrases)

    def _piece(self, token: int) -> str:
        """The text of a token inside a text: at the start of one, some tokenizers drop its leading space."""
        if token not in self._pieces:
            self._pieces[token] = self._decode([*self._anchor, token])[len(self._decode(self._anchor)) :]
        return self._pieces[token]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
