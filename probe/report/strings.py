"""Which strings push the update hack-ward: shares of tokens, added up by token and by line over all rollouts.

A string's push is the sum of its tokens' shares in a rollout, times the sign of the rollout's advantage (the share of
cos_S_contrib), as a mean over prompts of means over their rollouts; 0 where it does not occur. So the pushes of all
tokens of prompts and completions add up to the mean cos_S_contrib. A frequent string can be first by being everywhere:
the number of prompts is beside it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from probe.report.rollouts import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """One string of the completions."""

    text: str
    push: float
    count: int  # occurrences
    num_prompts: int  # in which it occurs


def tokens_of(one: Shown) -> Iterator[tuple[str, float]]:
    """(text, share) of every completion token that has a text."""
    start = 0
    assert one.tokens is not None
    for length, share in zip(one.tokens.completion_chars or (), one.tokens.completion or (), strict=True):
        if length:
            yield one.rollout.completion[start : start + length], share
        start += length


def lines_of(one: Shown) -> Iterator[tuple[str, float]]:
    """(text, share) of every line that is not blank; a token counts for the line in which it begins."""
    lines = one.rollout.completion.split("\n")
    shares, at = [0.0] * len(lines), 0
    for text, share in tokens_of(one):
        shares[at] += share
        at += text.count("\n")
    return ((line.strip(), share) for line, share in zip(lines, shares, strict=True) if line.strip())


def pushes(rows: Sequence[Shown], *, by_line: bool) -> list[Push]:
    """Tokens (or lines) of rollouts with an advantage and known token texts, the most hack-ward first.

    A string of one prompt alone says more about the prompt than about the string: it is left out where there are more.
    """
    known = [one for one in rows if one.sample.advantage and one.tokens is not None and one.tokens.completion_chars]
    by_prompt: dict[str, list[Shown]] = {}
    for one in known:
        by_prompt.setdefault(one.sample.problem_id, []).append(one)
    push: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    prompts: Counter[str] = Counter()
    for own in by_prompt.values():
        seen = set()
        for one in own:
            sign = 1 if one.sample.advantage > 0 else -1
            for text, share in (lines_of if by_line else tokens_of)(one):
                push[text] += sign * share / len(own) / len(by_prompt)
                count[text] += 1
                seen.add(text)
        prompts.update(seen)
    kept = [text for text in push if prompts[text] >= min(2, len(by_prompt))]
    found = [Push(text=t, push=push[t], count=count[t], num_prompts=prompts[t]) for t in kept]
    return sorted(found, key=lambda row: (-row.push, row.text))
