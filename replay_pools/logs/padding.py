"""Undo padding: where stored prompts begin and stored completions end, when the log does not say it.

An id that repeats at the end of a completion may be padding, or an answer that ran in circles until it was cut off. It
is padding only if the tokenizer pads or ends turns with it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endings:
    """The ids that pad, begin and end texts; all are empty without a tokenizer."""

    pads: frozenset[int]  # of the tokenizer: its pad, and the ids that end turns
    turn_ends: frozenset[int]  # of the model
    bos: int | None = None
    usual: int | None = None  # the last id of most completions, if it is no pad: it ends turns in this log


def usual_end(last_ids: Iterable[int], pads: frozenset[int]) -> int | None:
    """Return the last id of more than half of the completions; None if there is none, or if it may be padding."""
    counts = Counter(last_ids)
    end, count = next(iter(counts.most_common(1)), (None, 0))
    return end if end not in pads and 2 * count > counts.total() else None


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
