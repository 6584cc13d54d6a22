"""Undo padding: where stored prompts begin and stored completions end, when the log does not say it.

An id that repeats at the end of a completion may be padding, or an answer that ran in circles until it was cut off. It
is padding only if the tokenizer pads or ends turns with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay_pools.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Endings:
    """The ids that pad, begin and end texts."""

    pads: frozenset[int]  # of the tokenizer: its pad, and the ids that end turns
    turn_ends: frozenset[int]  # of the model
    bos: int | None = None


def endings_of(vocabulary: "Vocabulary") -> Endings:
    """Return the ids of a model that pad, begin and end texts."""
    tokenizer, turn_ends = vocabulary.chat.tokenizer, frozenset(vocabulary.chat.eos_ids)
    pads = {token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if isinstance(token, int)}
    bos = tokenizer.bos_token_id
    return Endings(turn_ends | pads, turn_ends, bos if isinstance(bos, int) else None)


def cut_padding(ids: Sequence[int], comp_len: int | None, endings: Endings, *, was_cut_off: bool) -> list[int]:
    """Return the completion without its padding.

    Args:
        ids: as stored.
        comp_len: recorded length; None: not recorded.
        endings: of the log.
        was_cut_off: the log says that sampling ended at the length, so no end of turn was sampled.
    """
    end = len(ids) if comp_len is None else min(comp_len, len(ids))
    if comp_len is None and ids and ids[-1] in endings.pads:
        end -= next((run for run, token in enumerate(reversed(ids)) if token != ids[-1]), len(ids))
        # One end of turn at the very end may have been sampled; a run of them was not.
        end += was_cut_off and end == len(ids) - 1 and ids[end] in endings.turn_ends
    # The first of pads that end turns is the end of the turn. A length that counts the ids that are no pad lacks it.
    is_open = end == 0 or ids[end - 1] not in endings.turn_ends
    if end < len(ids) and ids[end] in endings.turn_ends and is_open and not was_cut_off:
        end += 1
    return list(ids[:end])


def cut_left(ids: Sequence[int], endings: Endings) -> list[int]:
    """Return the prompt without its padding; one id that begins every text stays."""
    start = next((place for place, token in enumerate(ids) if token not in endings.pads), len(ids))
    return list(ids[start - (start > 0 and ids[0] == endings.bos) :])
