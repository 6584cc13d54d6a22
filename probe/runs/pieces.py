"""Pieces: the text of single tokens under a policy's tokenizer, and which tokens lie on planning phrases."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from probe.objective.credit import planning_tokens

HALF_A_CHARACTER = "\ufffd"  # what a decoder makes of bytes that are no whole character


class Pieces:
    """Token ids to their texts, each looked up once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._special = frozenset(tokenizer.all_special_ids)
        self._pieces: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        """The text of a token inside a text: at the start of one, some tokenizers drop its leading space."""
        if token not in self._pieces:
            self._pieces[token] = self._inside([token])
        return self._pieces[token]

    def lengths(self, ids: Sequence[int], text: str, *, special: bool) -> list[int] | None:
        """Characters of `text` that each token adds; None where the tokens do not spell it.

        Bytes of a character that is spread over several tokens count for the last of them.

        Args:
            special: whether special tokens are in `text` too (those of a prompt are, those of a completion are not).
        """
        pieces = ["" if not special and token in self._special else self(token) for token in ids]
        start = 0
        while start < len(ids):
            stop = start
            while stop < len(ids) and HALF_A_CHARACTER in pieces[stop]:
                stop += 1
            if stop > start:
                pieces[start:stop] = [*[""] * (stop - start - 1), self._inside(list(ids[start:stop]))]
            start = stop + 1
        return [len(piece) for piece in pieces] if "".join(pieces) == text else None

    def _inside(self, ids: list[int]) -> str:
        return self._decode([*self._anchor, *ids])[len(self._decode(self._anchor)) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class PlanningMarker:
    """Marks completion tokens that lie on planning phrases (`probe.objective.credit.planning_tokens`)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, phrases: Sequence[str]) -> None:
        self._pieces, self._phrases = Pieces(tokenizer), tuple(phrases)

    def __call__(self, completion_ids: Sequence[int]) -> list[bool]:
        """One mark for each token."""
        return planning_tokens([self._pieces(token) for token in completion_ids], self._phrases)
