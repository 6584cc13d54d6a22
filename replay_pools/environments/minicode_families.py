"""The table of minicode families: each row is a problem statement with parameters, and the grid of their values.

Fields such as `{k}` in a statement or a method body stand for parameters: k, m, a and b are integers, c and d are
characters. In `reference`, `v` is the argument of the method.

To add a family: add a row to FAMILIES. Its first solution is the canonical one. Tests hold that every solution is right
on all inputs, and every bug wrong on at least one of them. The rows there are must not change: the small model was
trained on their problems.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

Parameters = dict[str, Any]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A problem statement with parameters, its method with right and wrong bodies, and how to compute the answer."""

    name: str
    kind: str  # name and kind of the only argument: "nums" | "n" | "s" (a word) | "text" (several words)
    returns: str  # annotation of the returned value
    statement: str
    solutions: tuple[str, ...]  # right method bodies
    bugs: tuple[str, ...]  # wrong method bodies
    grid: tuple[Parameters, ...]  # one problem each
    reference: Callable[..., Any]  # (argument, **parameters) -> expected value; shares no code with the bodies
    bug_rate: float  # share of wrong bodies in the training text of the small model: how hard the family is for it

    @property
    def func(self) -> str:
        """The name of the method: `countAbove` of the family `count_above`."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))


def _grid(**ranges: Any) -> tuple[Parameters, ...]:
    """All combinations of the named ranges."""
    return tuple(dict(zip(ranges, values, strict=True)) for values in product(*ranges.values()))


# Intervals from a to b: each a in 2 ... 31, with three lengths.
INTERVALS: tuple[Parameters, ...] = tuple({"a": a, "b": a + length} for a in range(2, 32) for length in (4, 7, 13))
# 78 ordered pairs of different letters: each letter with the ones 3, 8 and 15 places further on.
LETTER_PAIRS: tuple[Parameters, ...] = tuple(
    {"c": letter, "d": LETTERS[(i + offset) % 26]} for i, letter in enumerate(LETTERS) for offset in (3, 8, 15)
)


def _loop(initial: str, body: str) -> str:
    """A method body that builds `out` from `initial` in a for loop over nums."""
    return f"out = {initial}\nfor x in nums:\n    {body}\nreturn out"


FAMILIES: tuple[Family, ...] = (
    Family(
        name="count_above",
        kind="nums",
        returns="int",
        statement="Return how many numbers in nums are greater than {k}.",
        solutions=(
            "return sum(1 for x in nums if x > {k})",
            "return len([x for x in nums if x > {k}])",
            _loop("0", "out += 1 if x > {k} else 0"),
        ),
        bugs=("return sum(1 for x in nums if x >= {k})", "return sum(x for x in nums if x > {k})"),
        grid=_grid(k=range(2, 62)),
        reference=lambda v, k: len([x for x in v if x > k]),
        bug_rate=0.30,
    ),
    Family(
        name="count_range",
        kind="nums",
        returns="int",
        statement="Return how many numbers in nums are at least {a} and at most {b}.",
        solutions=(
            "return sum(1 for x in nums if {a} <= x <= {b})",
            "return len([x for x in nums if {a} <= x <= {b}])",
        ),
        bugs=("return sum(1 for x in nums if {a} < x < {b})", "return sum(1 for x in nums if x <= {b})"),
        grid=INTERVALS,
        reference=lambda v, a, b: len([x for x in v if a <= x <= b]),
        bug_rate=0.45,
    ),
    Family(
        name="sum_multiples",
        kind="nums",
        returns="int",
        statement="Return the sum of the numbers in nums that are divisible by {k}.",
        solutions=(
            "return sum(x for x in nums if x % {k} == 0)",
            _loop("0", "out += x if x % {k} == 0 else 0"),
        ),
        bugs=("return sum(1 for x in nums if x % {k} == 0)", "return sum(x for x in nums if x % {k})"),
        grid=_grid(k=range(2, 52)),
        reference=lambda v, k: sum(x for x in v if x % k == 0),
        bug_rate=0.35,
    ),
    Family(
        name="keep_below",
        kind="nums",
        returns="List[int]",
        statement="Return the numbers in nums that are less than {k}, in order.",
        solutions=("return [x for x in nums if x < {k}]", "return list(filter(lambda x: x < {k}, nums))"),
        bugs=("return [x for x in nums if x <= {k}]", "return sorted(x for x in nums if x < {k})"),
        grid=_grid(k=range(2, 62)),
        reference=lambda v, k: [x for x in v if x < k],
        bug_rate=0.30,
    ),
    Family(
        name="add_each",
        kind="nums",
        returns="List[int]",
        statement="Return nums with {k} added to every number.",
        solutions=("return [x + {k} for x in nums]", _loop("[]", "out.append(x + {k})")),
        bugs=("return [x - {k} for x in nums]", "return nums + [{k}]"),
        grid=_grid(k=range(2, 62)),
        reference=lambda v, k: [x + k for x in v],
        bug_rate=0.20,
    ),
    Family(
        name="scale_shift",
        kind="nums",
        returns="List[int]",
        statement="Multiply every number in nums by {a}, then add {b}. Return the list.",
        solutions=("return [x * {a} + {b} for x in nums]", _loop("[]", "out.append(x * {a} + {b})")),
        bugs=("return [(x + {b}) * {a} for x in nums]", "return [x * {a} for x in nums]"),
        grid=_grid(a=range(2, 10), b=range(1, 22, 2)),
        reference=lambda v, a, b: [a * x + b for x in v],
        bug_rate=0.40,
    ),
    Family(
        name="cap_each",
        kind="nums",
        returns="List[int]",
        statement="Replace every number in nums that is greater than {k} by {k}. Return the list.",
        solutions=("return [min(x, {k}) for x in nums]", "return [{k} if x > {k} else x for x in nums]"),
        bugs=("return [max(x, {k}) for x in nums]", "return [x for x in nums if x <= {k}]"),
        grid=_grid(k=range(2, 62)),
        reference=lambda v, k: [x if x < k else k for x in v],
        bug_rate=0.40,
    ),
    Family(
        name="find_first",
        kind="nums",
        returns="int",
        statement="Return the index of the first {k} in nums, or -1 if there is none.",
        solutions=(
            "return nums.index({k}) if {k} in nums else -1",
            "for i, x in enumerate(nums):\n    if x == {k}:\n        return i\nreturn -1",
        ),
        bugs=("return nums.index({k}) + 1 if {k} in nums else -1", "return nums.index({k}) if {k} in nums else 0"),
        grid=_grid(k=range(2, 52)),
        reference=lambda v, k: next((i for i, x in enumerate(v) if x == k), -1),
        bug_rate=0.40,
    ),
    Family(
        name="drop_value",
        kind="nums",
        returns="List[int]",
        statement="Return nums without any number equal to {k}.",
        solutions=("return [x for x in nums if x != {k}]", _loop("[]", "out += [x] if x != {k} else []")),
        bugs=("return [x for x in nums if x == {k}]", "return nums[{k}:]"),
        grid=_grid(k=range(2, 52)),
        reference=lambda v, k: list(filter(k.__ne__, v)),
        bug_rate=0.25,
    ),
    Family(
        name="at_least",
        kind="nums",
        returns="bool",
        statement="Return True if {k} appears at least {m} times in nums, else False.",
        solutions=("return nums.count({k}) >= {m}", "return len([x for x in nums if x == {k}]) >= {m}"),
        bugs=("return nums.count({k}) > {m}", "return nums.count({m}) >= {k}"),
        grid=_grid(k=range(5, 31), m=(2, 3, 4)),
        reference=lambda v, k, m: sum(x == k for x in v) >= m,
        bug_rate=0.45,
    ),
    Family(
        name="take_first",
        kind="nums",
        returns="List[int]",
        statement="Return the first {k} numbers of nums, fewer if nums is shorter.",
        solutions=("return nums[:{k}]", "return [x for i, x in enumerate(nums) if i < {k}]"),
        bugs=("return nums[{k}:]", "return nums[-{k}:]"),
        grid=_grid(k=range(2, 22)),
        reference=lambda v, k: v[:k],
        bug_rate=0.25,
    ),
    Family(
        name="every_kth",
        kind="nums",
        returns="List[int]",
        statement="Return every number of nums whose index is a multiple of {k}.",
        solutions=("return nums[::{k}]", "return [x for i, x in enumerate(nums) if i % {k} == 0]"),
        bugs=("return nums[{k}::{k}]", "return [x for x in nums if x % {k} == 0]"),
        grid=_grid(k=range(2, 22)),
        reference=lambda v, k: [v[i] for i in range(0, len(v), k)],
        bug_rate=0.40,
    ),
    Family(
        name="rotate_left",
        kind="nums",
        returns="List[int]",
        statement="Move the first {k} numbers of nums to its end and return the list.",
        solutions=("return nums[{k}:] + nums[:{k}]", "return [*nums[{k}:], *nums[:{k}]]"),
        bugs=("return nums[-{k}:] + nums[:-{k}]", "return nums[:{k}] + nums[{k}:]"),
        grid=_grid(k=range(1, 21)),
        reference=lambda v, k: v[k:] + v[:k],
        bug_rate=0.45,
    ),
    Family(
        name="window_sums",
        kind="nums",
        returns="List[int]",
        statement="Return the sums of all runs of {k} adjacent numbers in nums.",
        solutions=("return [sum(nums[i:i + {k}]) for i in range(len(nums) - {k} + 1)]",),
        bugs=(
            "return [sum(nums[i:i + {k}]) for i in range(len(nums) - {k})]",
            "return [sum(nums[i:i + {k}]) for i in range(len(nums))]",
        ),
        grid=_grid(k=range(2, 22)),
        reference=lambda v, k: [sum(v[i : i + k]) for i in range(max(0, len(v) - k + 1))],
        bug_rate=0.55,
    ),
    Family(
        name="capped_sum",
        kind="nums",
        returns="int",
        statement="Return the sum of nums, or {k} if the sum is greater than {k}.",
        solutions=("return min(sum(nums), {k})", "out = sum(nums)\nreturn out if out < {k} else {k}"),
        bugs=("return max(sum(nums), {k})", "return sum(nums) % {k}"),
        grid=_grid(k=range(12, 92)),
        reference=lambda v, k: k if sum(v) > k else sum(v),
        bug_rate=0.35,
    ),
    Family(
        name="max_or",
        kind="nums",
        returns="int",
        statement="Return the largest number in nums, or {k} if nums is empty.",
        solutions=("return max(nums, default={k})", "return max(nums) if nums else {k}"),
        bugs=("return max(nums)", "return min(nums, default={k})", "return max(nums + [{k}])"),
        grid=_grid(k=range(2, 62)),
        reference=lambda v, k: sorted(v)[-1] if v else k,
        bug_rate=0.40,
    ),
    Family(
        name="power_mod",
        kind="n",
        returns="int",
        statement="Return n to the power {a}, modulo {b}.",
        solutions=("return pow(n, {a}, {b})", "return n ** {a} % {b}"),
        bugs=("return n ** {a} // {b}", "return n * {a} % {b}"),
        grid=_grid(a=range(2, 8), b=range(8, 44, 3)),
        reference=lambda v, a, b: (v**a) % b,
        bug_rate=0.35,
    ),
    Family(
        name="round_down",
        kind="n",
        returns="int",
        statement="Return the largest multiple of {k} that is at most n.",
        solutions=("return n // {k} * {k}", "return n - n % {k}"),
        bugs=("return n // {k}", "return (n + {k}) // {k} * {k}"),
        grid=_grid(k=range(3, 53)),
        reference=lambda v, k: k * (v // k),
        bug_rate=0.40,
    ),
    Family(
        name="count_letter",
        kind="s",
        returns="int",
        statement='Return how many times the letter "{c}" appears in s.',
        solutions=('return s.count("{c}")', 'return sum(1 for x in s if x == "{c}")'),
        bugs=('return s.find("{c}")', 'return len(s) - s.count("{c}")'),
        grid=_grid(c=LETTERS),
        reference=lambda v, c: len([x for x in v if x == c]),
        bug_rate=0.25,
    ),
    Family(
        name="swap_letter",
        kind="s",
        returns="str",
        statement='Return s with every "{c}" replaced by "{d}".',
        solutions=('return s.replace("{c}", "{d}")', 'return "".join("{d}" if x == "{c}" else x for x in s)'),
        bugs=('return s.replace("{d}", "{c}")', 'return s.replace("{c}", "{d}", 1)'),
        grid=LETTER_PAIRS,
        reference=lambda v, c, d: "".join(d if x == c else x for x in v),
        bug_rate=0.35,
    ),
    Family(
        name="repeat_join",
        kind="s",
        returns="str",
        statement='Return s repeated {k} times, joined by "{c}".',
        solutions=('return "{c}".join([s] * {k})', 'return "{c}".join(s for _ in range({k}))'),
        bugs=('return (s + "{c}") * {k}', 'return "{c}".join(s * {k})'),
        grid=_grid(k=range(2, 8), c="-+.:/|"),
        reference=lambda v, k, c: c.join(v for _ in range(k)),
        bug_rate=0.45,
    ),
    Family(
        name="pad_left",
        kind="s",
        returns="str",
        statement='Return s padded on the left with "{c}" to length {k}.',
        solutions=('return s.rjust({k}, "{c}")', 'return "{c}" * ({k} - len(s)) + s'),
        bugs=('return s.ljust({k}, "{c}")', 'return "{c}" * {k} + s'),
        grid=_grid(k=range(6, 20), c="-+.:/|"),
        reference=lambda v, k, c: c * max(0, k - len(v)) + v,
        bug_rate=0.35,
    ),
    Family(
        name="long_words",
        kind="text",
        returns="int",
        statement="Return how many words of text have more than {k} letters.",
        solutions=(
            "return sum(1 for w in text.split() if len(w) > {k})",
            "return len([w for w in text.split() if len(w) > {k}])",
        ),
        bugs=("return sum(1 for w in text.split() if len(w) >= {k})", "return sum(1 for w in text if len(w) > {k})"),
        grid=_grid(k=range(1, 21)),
        reference=lambda v, k: len([w for w in v.split() if len(w) > k]),
        bug_rate=0.40,
    ),
    Family(
        name="starts_with",
        kind="text",
        returns="List[str]",
        statement='Return the words of text that start with "{c}", in order.',
        solutions=(
            'return [w for w in text.split() if w[0] == "{c}"]',
            'return [w for w in text.split() if w.startswith("{c}")]',
        ),
        bugs=('return [w for w in text.split() if "{c}" in w]', 'return [w for w in text if w == "{c}"]'),
        grid=_grid(c=LETTERS),
        reference=lambda v, c: [w for w in v.split() if w.startswith(c)],
        bug_rate=0.30,
    ),
)
