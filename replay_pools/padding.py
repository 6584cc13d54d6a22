"""Undo right padding: where a stored completion ends when neither its length nor the pad id was stored."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endings:
    """How completions end in the stored ids."""

    pad: int | None  # right-padding id; None = nothing was padded
    eos: int | None  # end-of-turn id; None = not known
    longest: int  # tokens


def infer_endings(completions: Sequence[Sequence[int]]) -> Endings:
    """Padding and end-of-turn ids, from the ids alone.

    The pad id is the one that most often repeats at the end. Every padded completion has stopped, so an end-of-turn id
    other than the pad stands before the padding in all of them and nowhere earlier; where no id does, the pad itself
    ends turns (pad == eos) and one of it is content.
    """
    longest = max(map(len, completions), default=0)
    repeated = Counter(ids[-1] for ids in completions if len(ids) > 1 and ids[-1] == ids[-2])
    if not repeated:
        return Endings(None, _common_end(completions), longest)
    pad = repeated.most_common(1)[0][0]
    bodies = [ids[: _unpadded(ids, pad)] for ids in completions]
    last = {body[-1] for body, ids in zip(bodies, completions, strict=True) if body and len(body) < len(ids)}
    earlier = {item for body in bodies for item in body[:-1]}
    return Endings(pad, last.pop() if len(last) == 1 and not last & earlier else pad, longest)


def _common_end(completions: Sequence[Sequence[int]]) -> int | None:
    """The id that ends most completions and stands nowhere else in any."""
    ends = Counter(ids[-1] for ids in completions if ids)
    end, count = ends.most_common(1)[0] if ends else (None, 0)
    inside = any(item == end for ids in completions for item in ids[:-1])
    return end if 2 * count > len(completions) and not inside else None


def cut_padding(ids: Sequence[int], comp_len: int | None, endings: Endings) -> list[int]:
    """The completion without padding, and with the end-of-turn id that a mask by pad id would have lost."""
    end = _unpadded(ids, endings.pad) if comp_len is None else comp_len
    if end < len(ids) and ids[end] == endings.eos and (end == 0 or ids[end - 1] != endings.eos):
        end += 1
    return list(ids[:end])


def _unpadded(ids: Sequence[int], pad: int | None) -> int:
    """Length without the trailing run of `pad`."""
    end = len(ids)
    while end and ids[end - 1] == pad:
        end -= 1
    return end
