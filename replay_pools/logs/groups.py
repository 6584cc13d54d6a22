"""Which rollouts of a log are compared with one another: those of one group, whose rewards are the baseline.

By the group of the log; else by blocks of N rows; else by step and problem; else by step and prompt. A column that was
only guessed to be the group or the problem may count rows, or start again in each step or file: it is taken where it
gives groups with one prompt each.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter

from replay_pools.logs.columns import block_size
from replay_pools.logs.rows import RowFacts, row_of
from replay_pools.logs.sources import Log

BALANCED = 0.05  # |mean advantage| of a group over its largest: more says that the block is no group
ROUNDING = 0.01  # largest advantage over largest reward: a unit in the last place of float32, over TRL's 1e-4, is 0.001
Group = list[RowFacts]
Key = Callable[[RowFacts], Hashable]


def group_rows(log: Log, rows: Sequence[RowFacts]) -> None:
    """Fill the groups of a log, their problems, and what has to be said of them.

    A block that cannot be a group is a fault, and so is an answer that is none.
    """
    size = block_size(log.mapping)
    groups = _by_key(rows, _key(rows, log)) if size is None else _blocks(rows, size, log)
    _check_answers(groups, log)
    larger = [group for group in groups if len(group) > 1]
    if larger and len(larger) < len(groups):  # a group of one has no baseline
        log.notes.append(f"caution: groups of one rollout were left out ({len(groups) - len(larger)} groups)")
    log.groups = larger or groups
    log.notes += _cautions(log.groups)
    # Problems are names where they are no numbers of rows, and where they were guessed, of one prompt each.
    are_names = "problem" in log.mapping and all(row.problem for row in rows) and not _counts_rows(rows, "problem")
    if "problem" in log.guessed and are_names:
        prompts = {(row.problem, row.prompt_key) for row in rows}
        are_names = len(prompts) == len({row.problem for row in rows})
    for first, *_ in log.groups:
        by_prompt = f"prompt-{first.prompt_key:016x}"[:19]
        log.problem_ids.append("/".join(first.problem or ()) if are_names else by_prompt)


def _by_prompt(row: RowFacts) -> Hashable:
    return (row.step, row.prompt_key)


def _key(rows: Sequence[RowFacts], log: Log) -> Key:
    """What rollouts of one group share; a choice between several becomes a note."""
    target = "group" if "group" in log.mapping else "problem"
    value = attrgetter(target)
    if any(value(row) is None for row in rows):
        return _by_prompt
    name, is_guessed = log.mapping[target], target in log.guessed
    # Also of a problem that the user names: alone in its group, no rollout has an advantage.
    if _counts_rows(rows, target) and (is_guessed or target == "problem"):
        why = f"`{name}` is another one in every row, so that groups are those of equal prompts"
        log.notes.append(f"caution: {why} (--map group=COLUMN)")
        return _by_prompt
    in_step, in_file = attrgetter("step", target), attrgetter("file", "step", target)
    if not is_guessed:
        return value if target == "group" else in_step
    of_step = " in one step" if any(row.step is not None for row in rows) else ""
    for key, words in (
        (in_step, f"rows with one `{name}`{of_step}"),
        (value, f"rows with one `{name}`, whatever their step"),
        (in_file, f"rows with one `{name}`{of_step} of one file"),
        (_by_prompt, f"rows with equal prompts: `{name}` says otherwise, and has several prompts for one value"),
    ):
        groups = _by_key(rows, key)
        if len(groups) < len(rows) and not any(map(_has_several_prompts, groups)):
            prefix = "caution: " if key is _by_prompt else ""
            log.notes.append(f"{prefix}groups are {words} (--map group=COLUMN)")
            return key
    # All prompts differ: a group may hold several, which is said of it; a problem may not.
    if target == "problem":
        return _by_prompt
    return in_file if len(_by_key(rows, in_file)) < len(rows) else in_step


def _counts_rows(rows: Sequence[RowFacts], target: str) -> bool:
    """Whether no two rows of a step of a file share the value, although rows of one do share prompts."""
    places = attrgetter("file", "step")
    num_values = len({(places(row), getattr(row, target)) for row in rows})
    return num_values == len(rows) and len({(places(row), row.prompt_key) for row in rows}) < len(rows)


def _by_key(rows: Sequence[RowFacts], key: Key) -> list[Group]:
    groups: dict[Hashable, Group] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [*groups.values()]


def _has_several_prompts(group: Group) -> bool:
    return len({row.prompt_key for row in group}) > 1


def _check_answers(groups: Sequence[Group], log: Log) -> None:
    """Refuse a guessed completion that is one text in all rows of each group: the right answer of the problem."""
    if "completion" not in log.guessed or "completion_ids" in log.mapping:
        return
    larger = [group for group in groups if len(group) > 1]
    if larger and all(len({row.answer_key for row in group}) == 1 for group in larger):
        name = log.mapping["completion"]
        said = name if name == "completion" else f"{name} (completion)"
        expected = "several answers to one prompt"
        fix = f"the column was guessed: --map completion=COLUMN takes another, completion={name} this one"
        found = "one text in all rows of each group, as the right answer would be"
        where = row_of(log, larger[0][0]).where
        log.faults.add(f"{where} {said}", "answers", expected=expected, found=found, fix=fix)


def _blocks(rows: Sequence[RowFacts], size: int, log: Log) -> list[Group]:
    """Consecutive rows of one file, `size` at a time, each with one prompt and advantages around 0."""
    groups: list[Group] = []
    fix = "pass --map group=every:N, or group=COLUMN"
    for its_rows in _by_key(rows, attrgetter("file")):
        if len(its_rows) % size:
            found = f"{len(its_rows)} rows"
            log.faults.add(its_rows[0].file, "blocks", expected=f"a multiple of {size} rows", found=found, fix=fix)
        groups += [its_rows[start : start + size] for start in range(0, len(its_rows), size)]
    for group in groups:
        if _has_several_prompts(group):
            place, expected = row_of(log, group[0]).where, f"{size} rows with one prompt"
            log.faults.add(place, "prompts", expected=expected, found="several prompts", fix=fix)
        advantages = [row.advantage for row in group if row.advantage is not None]
        largest = max(map(abs, advantages), default=0.0)
        # Of equal rewards only the rounding of their mean is left, divided by a standard deviation of next to nothing.
        is_rounding = largest <= ROUNDING * max(abs(row.reward or 0.0) for row in group)
        sums_up = abs(math.fsum(advantages)) > BALANCED * len(group) * largest
        if len(advantages) == len(group) and sums_up and not is_rounding:
            expected, found = f"advantages of {size} rows that cancel", f"a sum of {math.fsum(advantages):.3g}"
            more = f"{fix}, or --map advantage=none where they are not centred"
            log.faults.add(row_of(log, group[0]).where, "advantages", expected=expected, found=found, fix=more)
    return groups


def _cautions(groups: Sequence[Group]) -> list[str]:
    """What makes a log worth less than its size, in the order of weight."""
    notes: list[str] = []
    groups = [group for group in groups if len(group) > 1] or [*groups]
    sizes = Counter(map(len, groups))
    if set(sizes) == {1}:
        notes.append("caution: every group holds one rollout: all advantages are 0, nothing can be measured")
    elif len(sizes) > 1:
        listed = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
        notes.append(f"caution: groups of several sizes: {listed} rollouts (replay with --per-pool {min(sizes)})")
    if mixed := sum(map(_has_several_prompts, groups)):
        notes.append(f"caution: {mixed} groups hold several prompts")
    spreads = [{row.reward for row in group if row.reward is not None} for group in groups]
    flat = sum(len(rewards) < 2 for rewards in spreads)
    if flat == len(groups):
        notes.append("caution: no group has reward variance: all advantages are 0, so use it beside another pool")
    elif flat:
        notes.append(f"{flat} of {len(groups)} groups have no reward variance, so no gradient")
    rows = [row for group in groups for row in group]
    for name, meaning in (("hacked", "hacks"), ("gt_pass", "is right")):
        unknown = [getattr(row, name) for row in rows].count(None)
        if unknown == len(rows):
            notes.append(f"caution: whether a rollout {meaning} is not known (--map {name}=COLUMN)")
        elif unknown:
            notes.append(f"caution: whether a rollout {meaning} is not known of {unknown} of {len(rows)}")
    hacked = {row.hacked for row in rows}
    if len(hacked) == 1 and None not in hacked:
        word = "hacks" if True in hacked else "is clean"
        notes.append(f"caution: every rollout {word}: there is no contrast between hacks and clean answers")
    return notes
