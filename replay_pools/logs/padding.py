"""Undo padding: where stored prompts begin and stored completions end, when the log does not say it.

An id that repeats at the end of a completion may be padding, or an answer that ran in circles until it was cut off. It
is padding only where the tokenizer pads or ends turns with it, or where it stands behind the end of a turn.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Ids = Sequence[int]


class Tail(NamedTuple):
    """How the ids of a completion end."""

    last: int
    run: int  # how often the last id repeats at the end
    before: int | None  # the id before that run
    length: int


def tail_of(ids: Ids) -> Tail:
    """Return how ids end."""
    end = len(ids)
    while end and ids[end - 1] == ids[-1]:
        end -= 1
    return Tail(ids[-1], len(ids) - end, ids[end - 1] if end else None, len(ids))


@dataclass(frozen=True, slots=True)
class Endings:
    """How completions end in the stored ids of a log."""

    pad: int | None  # id of the padding on the right; None: nothing is padded
    eos: int | None  # id that ends turns in the log; None: not known
    longest: int  # tokens
    pads: frozenset[int]  # ids with which the tokenizer pads or ends turns
    turn_ends: frozenset[int]  # all ids that end a turn


def find_endings(tails: Sequence[Tail], inner: set[int], pads: Ids, turn_ends: Ids) -> Endings:
    """Return the padding and the end of turns of a log.

    The pad is the id that most often repeats at the end. The end of turns is the id before the padding that the
    tokenizer knows as one. Without any, it is the only id that stands there and nowhere earlier.

    Args:
        tails: of the completions.
        inner: ids that stand inside of them.
        pads: ids with which the tokenizer pads or ends turns.
        turn_ends: ids with which the model ends turns.
    """
    longest = max((tail.length for tail in tails), default=0)
    repeated = Counter(tail.last for tail in tails if tail.run > 1 and (tail.last in pads or tail.before in turn_ends))
    if not repeated:
        (end, count), *_ = Counter(tail.last for tail in tails).most_common(1) or [(None, 0)]
        # An id that ends most completions and stands nowhere else ends turns, whatever the tokenizer says.
        is_inside = end in inner or any(tail.last == end and tail.run > 1 for tail in tails)
        eos = end if 2 * count > len(tails) and not is_inside else None
        return Endings(None, eos, longest, frozenset(pads), frozenset({*turn_ends, *([] if eos is None else [eos])}))
    ((pad, _),) = repeated.most_common(1)
    before = {tail.before for tail in tails if tail.last == pad and tail.before is not None}
    eos = pad
    if known := before & {*turn_ends}:
        eos = min(known)
    elif pad not in turn_ends and len(before) == 1 and not before & inner:
        eos = before.pop()
    return Endings(pad, eos, longest, frozenset(pads), frozenset({*turn_ends, eos}))


def cut_padding(ids: Ids, comp_len: int | None, endings: Endings, *, was_cut_off: bool) -> list[int]:
    """Return the completion without its padding.

    Args:
        ids: as stored.
        comp_len: recorded length; None: not recorded.
        endings: of the log.
        was_cut_off: the log says that sampling ended at the length, so no end of turn was sampled.
    """
    end = _unpadded(ids, endings, was_cut_off) if comp_len is None else min(comp_len, len(ids))
    # With pad == eos, a length that counts the ids that are no pad leaves out the end-of-turn id: take it back.
    ends_here = end == 0 or ids[end - 1] not in endings.turn_ends
    if end < len(ids) and ids[end] in endings.turn_ends and ends_here and not was_cut_off:
        end += 1
    return list(ids[:end])


def _unpadded(ids: Ids, endings: Endings, was_cut_off: bool) -> int:
    """Return the length without the run of the pad at the end, where that run is padding."""
    if not ids or ids[-1] != endings.pad:
        return len(ids)
    tail = tail_of(ids)
    is_known = endings.pad in endings.pads
    if was_cut_off:
        # One end of turn at the very end may have been sampled; a run of them was not.
        is_padding = is_known and (endings.pad not in endings.turn_ends or tail.run > 1)
    else:
        is_padding = is_known or tail.before in endings.turn_ends
    return len(ids) - tail.run if is_padding else len(ids)


def bare_prompt(ids: Ids, plen: int | None) -> tuple[int, int, list[int]]:
    """Return the first id of a prompt, how often it repeats there, and the ids behind (the last `plen` if known)."""
    if not ids:
        return -1, 0, []
    run = next((place for place, token in enumerate(ids) if token != ids[0]), len(ids))
    return ids[0], run, list(ids[run:] if plen is None else ids[max(0, len(ids) - plen) :])


def left_pads(first_ids: Iterable[tuple[int, int]], pads: Ids, pad: object) -> set[int]:
    """Return the ids that pad prompts on the left, from (first id, how often it repeats there) of each prompt."""
    found = {token for token, run in first_ids if token in pads and (run > 1 or token == pad)}
    return found


def cut_left(ids: Ids, padding: set[int], bos: object) -> list[int]:
    """Return the prompt without its padding; one id that begins every text stays."""
    first, run, _ = bare_prompt(ids, None)
    return list(ids[run - (first == bos) :]) if first in padding else list(ids)
