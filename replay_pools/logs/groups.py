"""Group the rollouts of a log: rollouts of one group are compared with one another.

A group is logged; else it is a block of N rows; else one step and problem; else one step and prompt. A column that
was only guessed to be the group or the problem may count rows, or start again in each step or file: it is taken where
it gives groups with one prompt each.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

from replay_pools.base.errors import Faults, InputError
from replay_pools.logs.columns import APART, EVERY, FILE, PROMPT_NAMES, SOURCES
from replay_pools.logs.formats import BY_BLOCKS
from replay_pools.logs.rollouts import Facts
from replay_pools.pool import CAUTION, LabelNote

FEWEST_GROUPS = 2  # that another column has to split
FEW = 0.1  # of the rollouts
Group = list[Facts]
Key = Callable[[Facts], Hashable]


def group_rollouts(
    facts: Sequence[Facts], mapping: dict[str, str], guessed: Set[str], faults: Faults
) -> tuple[dict[str, str], list[Group], list[str]]:
    """Return (mapping with the size of blocks, groups, notes).

    Args:
        facts: of the rollouts, in the order of the log.
        mapping: {target: column}.
        guessed: targets with a guessed column.
        faults: get blocks that cannot be groups, and a completion that is the right answer.

    Raises:
        InputError: a format with blocks for groups, and one row a prompt, or blocks of many sizes.
    """
    notes = list[str]()
    if mapping.get("group") == BY_BLOCKS:
        size = _size_of_blocks(facts)
        mapping = mapping | {"group": f"every:{size}"}
        notes.append(f"groups are blocks of {size} rows with one prompt (another size: --map group=every:N)")
    if match := EVERY.fullmatch(mapping.get("group", "")):
        groups = _blocks(facts, int(match[1]), faults)
    else:
        groups = _by_key(facts, _key(facts, mapping, guessed, notes))
    if "completion" in guessed and "completion_ids" not in mapping:
        _check_answers(groups, mapping["completion"], faults)
    groups, said = comparable(groups)
    return mapping, groups, notes + said


def comparable(groups: list[Group]) -> tuple[list[Group], list[str]]:
    """Return (groups, notes) without those of one rollout, which have no baseline, unless all are of one."""
    larger = [group for group in groups if len(group) > 1]
    if not larger or len(larger) == len(groups):
        return groups, []
    return larger, [f"{CAUTION}groups of one rollout were left out ({len(groups) - len(larger)} groups)"]


def _size_of_blocks(facts: Sequence[Facts]) -> int:
    """Return how many rows in a row have one prompt: TRL's num_generations.

    Blocks of one prompt that stand next to one another are one, so that a smaller one tells the size.
    """
    size = math.gcd(*(sum(1 for _ in block) for _, block in groupby(facts, key=attrgetter("file", "prompt_key"))))
    if size < 2:
        expected, found = "blocks of num_generations rows with one prompt", "one row a prompt, or blocks of many sizes"
        fix = "pass --map group=every:NUM_GENERATIONS, and log without log_unique_prompts"
        raise InputError(facts[0].file, expected=expected, found=found, fix=fix)
    return size


def name_problems(groups: Sequence[Group], mapping: Mapping[str, str], is_guessed: bool) -> list[str]:
    """Return the name of the problem of each group: as logged unless it is a row number, else by its prompt."""
    rows = [row for group in groups for row in group]
    are_names = "problem" in mapping and all(row.problem for row in rows) and not _is_row_number(rows, "problem")
    if is_guessed and are_names:
        prompts = {(row.problem, row.prompt_key) for row in rows}
        are_names = len(prompts) == len({row.problem for row in rows})
    return [
        "/".join(group[0].problem or ()) if are_names else f"prompt-{group[0].prompt_key:016x}"[:19] for group in groups
    ]


def _by_prompt(row: Facts) -> Hashable:
    return (row.step, row.prompt_key)


def _key(facts: Sequence[Facts], mapping: Mapping[str, str], guessed: Set[str], notes: list[str]) -> Key:
    """Return what rollouts of one group share; a choice between several becomes a note."""
    target = "group" if "group" in mapping else "problem"
    value = attrgetter(target)
    if any(value(row) is None for row in facts):
        return _by_prompt
    name, is_guessed = mapping[target], target in guessed
    # Also of a problem that the user names: alone in its group, no rollout has an advantage.
    if _is_row_number(facts, target) and (is_guessed or target == "problem"):
        why = f"`{name}` is another one in every row, so rollouts of equal prompts are a group"
        notes.append(f"{CAUTION}{why} (--map group=COLUMN)")
        return _by_prompt
    in_step, in_file = attrgetter("step", target), attrgetter("file", "step", target)
    if not is_guessed:
        return value if target == "group" else in_step
    of_step = " in one step" if any(row.step is not None for row in facts) else ""
    for key, words in (
        (in_step, f"rows with one `{name}`{of_step}"),
        (value, f"rows with one `{name}`, whatever their step"),
        (in_file, f"rows with one `{name}`{of_step} of one file"),
        (_by_prompt, f"rows with equal prompts: `{name}` says otherwise, and has several prompts for one value"),
    ):
        groups = _by_key(facts, key)
        if len(groups) < len(facts) and not any(map(_has_several_prompts, groups)):
            prefix = CAUTION if key is _by_prompt else ""
            notes.append(f"{prefix}groups are {words} (--map group=COLUMN)")
            return key
    # All prompts differ: a group may hold several, which is said of it; a problem may not.
    if target == "problem":
        return _by_prompt
    return in_file if len(_by_key(facts, in_file)) < len(facts) else in_step


def _is_row_number(facts: Sequence[Facts], target: str) -> bool:
    """Return whether no two rows of a step of a file share the value, although rows of one do share prompts.

    Where all prompts stand in blocks of rows, also whether no two rows of a block share it: it starts again in each
    pass over the prompts.
    """
    places, value = attrgetter("file", "step"), attrgetter(target)
    num_values = len({(places(row), value(row)) for row in facts})
    if num_values == len(facts) and len({(places(row), row.prompt_key) for row in facts}) < len(facts):
        return True
    blocks = [[*block] for _, block in groupby(facts, key=attrgetter("file", "step", "prompt_key"))]
    return min(map(len, blocks)) > 1 and all(len({*map(value, block)}) == len(block) for block in blocks)


def _by_key(facts: Sequence[Facts], key: Key) -> list[Group]:
    groups: dict[Hashable, Group] = {}
    for row in facts:
        groups.setdefault(key(row), []).append(row)
    return [*groups.values()]


def _has_several_prompts(group: Group) -> bool:
    return len({row.prompt_key for row in group}) > 1


def check_comparable(
    groups: Sequence[Group],
    facts: Sequence[Facts],
    marks: Sequence[str],
    mapping: Mapping[str, str],
    base: str,
    source: str,
) -> None:
    """Ask about rollouts of one group that may not be comparable: of two models, steps, runs, files or epochs.

    Args:
        groups: by prompts or problems.
        facts: of all rollouts, in the order of the log.
        marks: columns of `Facts.marks`.
        mapping: {target: column}.
        base: the prompt's name in `--map group`.
        source: of the log.

    Raises:
        InputError: the first question, with the options that answer.
    """
    compares = f"--map group={base} compares them"
    for place, name in enumerate(marks):
        is_prompt = name in PROMPT_NAMES and "problem" not in mapping
        larger = [Counter(row.marks[place] for row in group) for group in groups if len(group) > 1]
        split = [parts for parts in larger if len(parts) > 1]
        values = {value for parts in larger for value in parts}
        if not split or not (is_prompt or _were_groups(split, name.rpartition(".")[2], len(larger), values)):
            continue
        apart = "+".join([*([mapping["step"]] if "step" in mapping else []), name, base])
        fix = f"--map group={apart} keeps them apart, {compares}"
        if "step" not in mapping and all(isinstance(value, int) for value in values):
            fix = f"--map step={name} if it counts steps of a training; else {fix}"
        if is_prompt:
            fix = f"--map prompt={base}+{name} if the model saw both; else {fix}"
        found = f"{len(values)} values in {len(split)} of {len(larger)} groups of equal prompts"
        raise InputError(f"{source} {name}", expected=f"rollouts of one `{name}` in a group", found=found, fix=fix)
    several, size, has_other_sizes = _blocks_apart(groups, facts)
    if not several:
        return
    apart = "--map step=COLUMN, one that counts them," if has_other_sizes else f"--map group=every:{size}"
    unit, fix = "prompts", f"{apart} keeps them apart, {compares}"
    if "step" in mapping:
        unit, base = "steps", f"{mapping['step']}+{base}"
        fix = f"if steps ran again, delete the rows of the first run; --map group={base} compares them"
    found = f"{several} of {len(groups)} groups in several blocks ({size} rows), with rows of other {unit} between"
    raise InputError(source, expected="the rows of each group in one block", found=found, fix=fix)


def _were_groups(split: Sequence[Counter[Any]], key: str, num_groups: int, values: Set[Any]) -> bool:
    """Return whether the parts of groups that a column splits were groups: equal ones, of two rollouts at least.

    Parts of other weights or files may be single rollouts, those of other weights of several sizes. A column that is
    no source of rollouts has to split all groups, into other parts than 0 and 1.
    """
    are_parts = key in APART or all(min(parts.values()) > 1 for parts in split)
    is_equal = key in APART - {FILE} or all(len({*parts.values()}) == 1 for parts in split)
    is_everywhere = len(split) == num_groups >= FEWEST_GROUPS and not values <= {0, 1}
    return are_parts and is_equal and (key in SOURCES or is_everywhere)


def _blocks_apart(groups: Sequence[Group], facts: Sequence[Facts]) -> tuple[int, int, bool]:
    """Return (groups in several blocks of rows, rows of a block, whether some blocks have other sizes).

    Between such blocks lie rows of other prompts (of other steps, if steps are known): they may be several epochs, or
    a step that ran again. 0 groups unless half of all blocks or more have one size of two at least, or a multiple of
    it: rows may be missing, and a prompt may end one epoch and begin the next.
    """
    places = {row.number: place for place, row in enumerate(facts)}

    def lie_apart(first: Facts, second: Facts) -> bool:
        between = range(places[first.number] + 1, places[second.number])
        is_other = (facts[place].step is None or facts[place].step != second.step for place in between)
        return first.file == second.file and any(is_other)

    blocks = [[0, *(i for i, pair in enumerate(pairwise(group), 1) if lie_apart(*pair))] for group in groups]
    ends = zip(blocks, map(len, groups), strict=True)
    sizes = Counter(end - start for starts, length in ends for start, end in pairwise([*starts, length]))
    size = sizes.most_common(1)[0][0]
    whole = sum(count for each, count in sizes.items() if each % size == 0)
    is_usual = size > 1 and 2 * whole >= sizes.total()
    return is_usual * sum(len(starts) > 1 for starts in blocks), size, whole < sizes.total()


def _check_answers(groups: Sequence[Group], name: str, faults: Faults) -> None:
    """Refuse a guessed completion that is one text in all rows of each group: the right answer of the problem."""
    larger = [group for group in groups if len(group) > 1]
    if larger and all(len({row.answer_key for row in group}) == 1 for group in larger):
        said = name if name == "completion" else f"{name} (completion)"
        fix = f"the column was guessed: --map completion=COLUMN takes another, completion={name} this one"
        found = "one text in all rows of each group, as the right answer would be"
        where = f"{larger[0][0].where} {said}"
        faults.add(where, "answers", expected="several answers to one prompt", found=found, fix=fix)


def _blocks(facts: Sequence[Facts], size: int, faults: Faults) -> list[Group]:
    """Return consecutive rows of one file, `size` at a time, each with one prompt."""
    groups: list[Group] = []
    fix = "pass --map group=every:N, or group=COLUMN"
    for rows in _by_key(facts, attrgetter("file")):
        if len(rows) % size:
            expected, found = f"a multiple of {size} rows", f"{len(rows)} rows"
            faults.add(rows[0].file, "blocks", expected=expected, found=found, fix=fix)
        groups += [rows[start : start + size] for start in range(0, len(rows), size)]
    for group in groups:
        if _has_several_prompts(group):
            expected = f"{size} rows with one prompt"
            faults.add(group[0].where, "prompts", expected=expected, found="several prompts", fix=fix)
    return groups


def without_unrewarded(groups: Sequence[Group], source: str) -> tuple[list[Group], list[str]]:
    """Return (groups, notes) without the rollouts that have no reward: nothing says what they are worth.

    Raises:
        InputError: no rollout has a reward.
    """
    kept = [[row for row in group if row.reward is not None] for group in groups]
    num_rows, num_kept = sum(map(len, groups)), sum(map(len, kept))
    if not num_kept:
        fix, found = "pass --map reward=COLUMN", f"none of {num_rows} rollouts with one"
        raise InputError(f"{source} reward", expected="rewards that are numbers", found=found, fix=fix)
    sentence = f"{num_rows - num_kept} of {num_rows} rows have no reward and were left out, and their groups lack them"
    return [group for group in kept if group], [f"{CAUTION}{sentence}"] if num_kept < num_rows else []


def without_failures(groups: Sequence[Group]) -> tuple[list[Group], list[str]]:
    """Return (groups, notes) without the rollouts that failed, which were compared with the others in training."""
    kept = [[row for row in group if not row.is_left_out] for group in groups]
    return comparable([group for group in kept if group])


def group_cautions(groups: Sequence[Group], least: float | None) -> list[str]:
    """Return what makes a log worth less than its size, in the order of weight.

    Args:
        groups: of the log.
        least: the reward above which a rollout counts as passed; None: something else says what passed.
    """
    notes: list[str] = []
    rows = [row for group in groups for row in group]
    rewards = [row.reward for row in rows if row.reward is not None]
    num_least = rewards.count(least) if least is not None else len(rewards)
    if len({*rewards}) > 2 and num_least < FEW * len(rewards):
        said = f"{len(rewards) - num_least} of {len(rewards)} rollouts earn more than the least reward"
        notes.append(LabelNote(f"{CAUTION}{said}, {least:g}, and count as passed (--map passed='COLUMN>NUMBER')"))
    sizes = Counter(map(len, groups))
    if set(sizes) == {1}:
        notes.append(f"{CAUTION}every group holds one rollout: all advantages are 0, nothing can be measured")
    elif len(sizes) > 1:
        listed = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
        notes.append(f"{CAUTION}groups of several sizes: {listed} rollouts (replay with --per-pool {min(sizes)})")
    if mixed := sum(map(_has_several_prompts, groups)):
        notes.append(f"{CAUTION}{mixed} groups hold several prompts")
    spreads = [{row.reward for row in group if row.reward is not None} for group in groups]
    flat = sum(len(rewards) < 2 for rewards in spreads)
    if flat == len(groups):
        said = "no group has reward variance: all advantages are 0, so use it with another pool"
        notes.append(LabelNote(CAUTION + said))
    elif flat:
        notes.append(LabelNote(f"{flat} of {len(groups)} groups have no reward variance, so no gradient"))
    for name, meaning in (("hacked", "hacks"), ("gt_pass", "is right")):
        unknown = [getattr(row, name) for row in rows].count(None)
        if unknown == len(rows):
            notes.append(LabelNote(f"{CAUTION}whether a rollout {meaning} is not known (--map {name}=COLUMN)"))
        elif unknown:
            notes.append(LabelNote(f"{CAUTION}whether a rollout {meaning} is not known of {unknown} of {len(rows)}"))
    hacked = {row.hacked for row in rows}
    if len(hacked) == 1 and None not in hacked:
        word = "hacks" if True in hacked else "is clean"
        said = f"every rollout {word}: there is no contrast between hacks and clean answers"
        notes.append(LabelNote(CAUTION + said))
    return notes
