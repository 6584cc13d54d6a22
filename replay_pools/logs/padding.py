"""Undo padding: where a stored prompt begins, and where a stored completion ends, when the log does not say it.

What repeats at the end of a completion may be padding, or an answer that ran in circles until it was cut off. So an id
is padding only where the tokenizer pads or ends turns with it, or where it stands behind the end of a turn.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Endings:
    """How completions end in the stored ids."""

    pad: int | None  # right-padding id; None = nothing was padded
    eos: int | None  # end-of-turn id; None = not known
    longest: int  # tokens
    is_known: bool  # whether the tokenizer pads or ends turns with `pad`; else it is padding only behind an end
    turn_ends: frozenset[int]  # all ids that end a turn


def infer_endings(completions: Iterable[Ids], pads: Ids, turn_ends: Ids) -> Endings:
    """Padding and end-of-turn ids, from the ids and what the tokenizer knows.

    The pad id is the one that most often repeats at the end of completions, as padding does. An end of turn stands
    before the padding. Where none does that the tokenizer knows, it is the one id that stands before all padding and
    nowhere earlier; where there is no such id, the pad itself ends turns (pad == eos) and one of it is content.

    Args:
        completions: as stored; gone through several times.
        pads: ids with which the tokenizer pads or ends turns.
        turn_ends: ids with which the model ends turns.
    """
    longest = max(map(len, completions), default=0)
    repeated: Counter[int] = Counter()
    for ids in completions:
        end = _before_run(ids)
        if len(ids) - end > 1 and (ids[-1] in pads or (end and ids[end - 1] in turn_ends)):
            repeated[ids[-1]] += 1
    if not repeated:
        eos = _common_end(completions)
        ends = frozenset(turn_ends) if eos is None else frozenset({*turn_ends, eos})
        return Endings(None, eos, longest, False, ends)
    pad = repeated.most_common(1)[0][0]
    before_padding: set[int] = set()  # ids that stand right before the padding
    inside: set[int] = set()  # ids anywhere earlier
    for ids in completions:
        end = _before_run(ids) if ids and ids[-1] == pad else len(ids)
        inside.update(ids[: max(0, end - 1)])
        if 0 < end < len(ids):
            before_padding.add(ids[end - 1])
    eos = pad
    if known := before_padding & {*turn_ends}:
        eos = min(known)
    elif pad not in turn_ends and len(before_padding) == 1 and not before_padding & inside:
        eos = before_padding.pop()
    return Endings(pad, eos, longest, pad in pads, frozenset({*turn_ends, eos}))


def _common_end(completions: Iterable[Ids]) -> int | None:
    """The id that ends more than half of the completions and stands nowhere else in any; None where there is none."""
    ends = Counter(ids[-1] for ids in completions if ids)
    if not ends:
        return None
    end, count = ends.most_common(1)[0]
    stands_inside = any(end in ids[:-1] for ids in completions)
    return end if 2 * count > ends.total() and not stands_inside else None


def cut_padding(ids: Ids, comp_len: int | None, endings: Endings, *, was_cut_off: bool) -> list[int]:
    """The completion without its padding.

    Args:
        ids: as stored, perhaps padded on the right.
        comp_len: recorded length; None = not recorded.
        endings: of the pool, from `infer_endings`.
        was_cut_off: whether the log says that sampling ended at the length, so that no end of turn was sampled.
    """
    end = _unpadded(ids, endings, was_cut_off) if comp_len is None else min(comp_len, len(ids))
    # With pad == eos, a length that counts the ids that are no pad leaves out the end-of-turn id: take it back.
    ends_here = end == 0 or ids[end - 1] not in endings.turn_ends
    if end < len(ids) and ids[end] in endings.turn_ends and ends_here and not was_cut_off:
        end += 1
    return list(ids[:end])


def _unpadded(ids: Ids, endings: Endings, was_cut_off: bool) -> int:
    """Length without the trailing run of the pad, where that run is padding."""
    if not ids or ids[-1] != endings.pad:
        return len(ids)
    end = _before_run(ids)
    stands_behind_end = end > 0 and ids[end - 1] in endings.turn_ends
    if was_cut_off:
        # One end of turn at the very end may have been sampled; a run of them was not.
        is_padding = endings.is_known and (endings.pad not in endings.turn_ends or len(ids) - end > 1)
    else:
        is_padding = endings.is_known or stands_behind_end
    return end if is_padding else len(ids)


def _before_run(ids: Ids) -> int:
    """Length without the trailing run of whatever id is the last."""
    return len(ids) - _run(ids[::-1])


def _run(ids: Ids) -> int:
    """How often the first id stands at the start."""
    return next((place for place, token in enumerate(ids) if token != ids[0]), len(ids))


def leading_padding(prompts: Iterable[tuple[Ids, int | None]]) -> list[int]:
    """The number of ids before each prompt that are padding, as far as can be told without a model.

    Padding repeats: ids are padding that lead some prompt of the log in a run of two or more.

    Args:
        prompts: (ids as stored, recorded length or None).
    """
    starts = [(ids[:1], _run(ids), max(0, len(ids) - length) if length else None) for ids, length in prompts]
    padding = [first for first, run, _ in starts if run > 1]
    padding = {token for first in padding for token in first}
    return [(run if padding.issuperset(first) else 0) if lead is None else lead for first, run, lead in starts]


def left_pads(prompts: Iterable[Ids], pads: Ids, pad: object, bos: object) -> dict[int, int]:
    """{id that pads prompts on the left: how many of it are content}, where their length is not logged.

    The pad id does wherever it leads; an id that ends turns, where it leads in a run of two or more, or not all
    prompts. An id that also begins texts is content once, where it leads every prompt.

    Args:
        prompts: as stored; gone through several times. Empty ones do not count.
        pads: ids with which the tokenizer pads or ends turns.
        pad: the tokenizer's padding id.
        bos: the id with which it begins texts.
    """
    lead = Counter[int]()
    for ids in prompts:
        if ids:
            lead[ids[0]] = max(lead[ids[0]], _run(ids))
    padding: dict[int, int] = {}
    for token in {*pads} & lead.keys():
        leads_all = all(ids[0] == token for ids in prompts if ids)
        if lead[token] > 1 or (token != bos and (token == pad or not leads_all)):
            padding[token] = int(token == bos and leads_all)
    return padding


def cut_left(ids: Ids, padding: dict[int, int]) -> list[int]:
    """The prompt without its padding, by `left_pads`."""
    return list(ids[_run(ids) - padding[ids[0]] :]) if ids and ids[0] in padding else list(ids)
