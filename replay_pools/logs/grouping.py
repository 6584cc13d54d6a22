"""Group the rollouts of a log: rollouts of one group are compared with one another.

A group is logged; else it is a block of N rows; else one step and problem; else one step and prompt. A column that
was only guessed to be the group or the problem may count rows, or start again in each step or file: it is taken where
it gives groups with one prompt each.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.logs.columns import APART, EVERY, FILE, PROMPT_NAMES, RIGHT_ANSWERS, SETTINGS, truth_of
from replay_pools.logs.parse import Logged
from replay_pools.pool import CAUTION, LabelNote

FEWEST_GROUPS = 2  # that another column has to split
RARE = 0.01  # a chance
_by_prompt = attrgetter("step", "prompt_key")
Group = list[Logged]
Key = Callable[[Logged], Hashable]
Marked = list[tuple[Any, float]]  # value of a column and reward of each rollout of a group


def group_rollouts(
    rollouts: Sequence[Logged], mapping: dict[str, str], guessed: Set[str]
) -> tuple[dict[str, str], list[Group], list[str]]:
    """Return (mapping with the size of blocks, groups, notes) of rollouts in the order of the log.

    Raises:
        InputError: blocks of rows that are no groups, or a guessed completion that is the right answer.
    """
    notes = list[str]()
    if match := EVERY.fullmatch(mapping.get("group", "")):
        groups, size = _blocks(rollouts, int(match[1] or 0))
        mapping = mapping | {"group": f"every:{size}"}
        if not match[1]:
            notes.append(f"groups are blocks of {size} rows with one prompt (another size: --map group=every:N)")
    else:
        groups = _by_key(rollouts, _key(rollouts, mapping, guessed, notes))
    groups, said = comparable(groups)
    is_guess = "completion" in guessed and "completion_ids" not in mapping
    several = [group for group in groups if len(group) > 1]
    if is_guess and several and all(len({row.answer_key for row in group}) == 1 for group in several):
        where, fix = f"{groups[0][0].file} {mapping['completion']}", "--map completion=COLUMN names the completion"
        found = "one text in all rows of each group, as the right answer would be"
        raise InputError(where, expected="several answers to one prompt", found=found, fix=fix)
    return mapping, groups, notes + said


def comparable(groups: Sequence[Group]) -> tuple[list[Group], list[str]]:
    """Return (groups, notes) without groups of one rollout, which have no baseline, unless all have one."""
    groups = [group for group in groups if group]
    larger = [group for group in groups if len(group) > 1]
    if not larger or len(larger) == len(groups):
        return groups, []
    return larger, [f"{CAUTION}groups of one rollout were left out ({len(groups) - len(larger)} groups)"]


def name_problems(groups: Sequence[Group], is_guessed: bool) -> list[str]:
    """Return the name of the problem of each group: as logged if its rows share it, else by its prompt."""
    problems = [{row.problem for row in group} for group in groups]
    prompts = {(row.problem, row.prompt_key) for group in groups for row in group}
    is_unlike = is_guessed and len(prompts) > len(set[Any]().union(*problems))
    if is_unlike or any(len(each) > 1 or None in each for each in problems):
        return [f"prompt-{group[0].prompt_key:016x}"[:19] for group in groups]
    return ["/".join(group[0].problem or ()) for group in groups]


def _key(rows: Sequence[Logged], mapping: Mapping[str, str], guessed: Set[str], notes: list[str]) -> Key:
    """Return what rollouts of one group share; a choice between several becomes a note."""
    target = "group" if "group" in mapping else "problem"
    value, in_step = attrgetter(target), attrgetter("step", target)
    if any(value(row) is None for row in rows):
        return _by_prompt
    if target not in guessed and target == "group":
        return value
    name, of_step = mapping[target], " in one step" if any(row.step is not None for row in rows) else ""
    num_prompts = len(_by_key(rows, _by_prompt))
    # A number of the rows with one prompt starts again in each pass over the prompts.
    blocks = [[*map(value, block)] for _, block in groupby(rows, key=attrgetter("file", "step", "prompt_key"))]
    is_row_number = min(map(len, blocks)) > 1 and all(len({*block}) == len(block) for block in blocks)
    groups = _by_key(rows, in_step)
    are_single = len(groups) == len(rows) > num_prompts  # alone in its group, no rollout has an advantage
    if target not in guessed and not is_row_number and not are_single:
        return in_step
    if len(groups) < len(rows) and not is_row_number and not any(map(_has_several_prompts, groups)):
        notes.append(f"groups are rows with one `{name}`{of_step} (--map group=COLUMN)")
        return in_step
    if num_prompts < len(rows):
        why = f"`{name}` is another one in every row, or has several prompts for one value"
        notes.append(f"{CAUTION}groups are rows with equal prompts: {why} (--map group=COLUMN)")
    elif target == "group":  # all prompts differ: a group may hold several, which is said of it; a problem may not
        return in_step
    return _by_prompt


def _by_key(rollouts: Sequence[Logged], key: Key) -> list[Group]:
    groups: dict[Hashable, Group] = {}
    for row in rollouts:
        groups.setdefault(key(row), []).append(row)
    return [*groups.values()]


def _has_several_prompts(group: Group) -> bool:
    return len({row.prompt_key for row in group}) > 1


def check_comparable(
    groups: list[Group], rollouts: list[Logged], marks: Sequence[str], mapping: dict[str, str], base: str, source: str
) -> None:
    """Ask about rollouts of one group that may not be comparable: of two models, steps, runs, files or epochs.

    `marks` are the columns of `Logged.marks`, `base` is the prompt's name in `--map group`.

    Raises:
        InputError: the first question, with the options that answer.
    """
    in_step = f"{mapping['step']}+" if "step" in mapping else ""
    compares = f"--map group={in_step}{base} compares them"
    for place, name in enumerate(marks):
        is_prompt = name in PROMPT_NAMES and "problem" not in mapping
        larger = [[(row.marks[place], row.reward or 0.0) for row in group] for group in groups if len(group) > 1]
        values = {value for group in larger for value, _ in group}
        split, others = list[Marked](), list[Marked]()
        for group in larger:
            (split if len({value for value, _ in group}) > 1 else others).append(group)
        if not split or not (is_prompt or _were_groups(split, others, name.rpartition(".")[2], values)):
            continue
        fix = f"--map group={in_step}{name}+{base} keeps them apart, {compares}"
        if "step" not in mapping and all(type(value) is int for value in values):
            fix = f"--map step={name} if it counts steps of a training; else {fix}"
        if is_prompt:
            fix = f"--map prompt={base}+{name} if the model saw both; else {fix}"
        found = f"{len(values)} values in {len(split)} of {len(larger)} groups of equal prompts"
        raise InputError(f"{source} {name}", expected=f"rollouts of one `{name}` in a group", found=found, fix=fix)
    blocks = _blocks_of(groups, rollouts)
    parts = [[*Counter(blocks[row.number] for row in group).values()] for group in groups]
    size, several = Counter(chain(*parts)).most_common(1)[0][0], sum(len(each) > 1 for each in parts)
    if not several or size == 1:
        return
    is_even = all(each % size == 0 for each in chain(*parts))
    apart = f"--map group=every:{size}" if is_even else "--map step=COLUMN, one that counts them,"
    fix = f"{apart} keeps them apart, {compares}"
    if in_step:
        fix = f"if steps ran again, delete the rows of the first run; {compares}"
    found = f"{several} of {len(groups)} groups in several blocks (of {size} rows), with other rows between"
    raise InputError(source, expected="the rows of each group in one block", found=found, fix=fix)


def _were_groups(split: Sequence[Marked], others: Sequence[Marked], key: str, values: Set[Any]) -> bool:
    """Return whether the parts of groups that a column splits were groups: equal ones, of two rollouts at least.

    Parts of other weights or files may be single rollouts, those of other weights of several sizes, and those of files
    where they make a group too large. A column that names neither has to split all groups. One of yes and no may say
    how rollouts came out: then it tells high rewards from low ones, or its halves are mixed and by chance equal.
    """
    are_truths = all(truth_of(value) is not None for value in values)
    if key in APART - {FILE} and not (are_truths and key in RIGHT_ANSWERS):
        return True
    sizes = [Counter(value for value, _ in group).values() for group in split]
    are_equal = all(len({*each}) == 1 for each in sizes)
    if key == FILE:
        usual = [*map(len, others)]
        return are_equal or (bool(usual) and min(map(len, split)) > max(usual))
    if others or not are_equal or len(split) < FEWEST_GROUPS or any(min(each) < 2 for each in sizes):
        return False
    if key in SETTINGS or not are_truths:
        return True
    are_blocks = all(sum(1 for _ in groupby(value for value, _ in group)) == 2 for group in split)
    chance = math.prod(math.comb(len(group), len(group) // 2) / 2 ** len(group) for group in split)
    return (are_blocks or chance < RARE) and not all(map(_tells_rewards, split))


def _tells_rewards(group: Marked) -> bool:
    """Return whether all rewards of one value of a column are below those of another."""
    halves = [[reward for value, reward in group if value == each] for each in {value for value, _ in group}]
    low, *_, high = sorted(halves, key=max)
    return max(low) < min(high)


def _blocks_of(groups: Sequence[Group], rollouts: Sequence[Logged]) -> dict[int, int]:
    """Return {number: how often its group (its step, if steps are known) stood before it in its file}.

    A group that comes again after others may be one of another epoch, or of a step that ran again.
    """
    group_of = {row.number: place for place, group in enumerate(groups) for row in group}
    keys = [(row.file, group_of.get(row.number) if row.step is None else row.step) for row in rollouts]
    blocks, before = dict[int, int](), Counter[Any]()
    for place, (row, key) in enumerate(zip(rollouts, keys, strict=True)):
        before[key] += place == 0 or keys[place - 1] != key
        blocks[row.number] = before[key]
    return blocks


def _blocks(rollouts: Sequence[Logged], size: int) -> tuple[list[Group], int]:
    """Return (blocks of consecutive rows of one file, each with one prompt; their size, found where 0 is given)."""
    # Blocks of one prompt that stand next to one another are one, so that a smaller one tells the size.
    runs = [len([*run]) for _, run in groupby(rollouts, key=attrgetter("file", "prompt_key"))]
    size, files = size or math.gcd(*runs), _by_key(rollouts, attrgetter("file"))
    groups = [rows[start : start + size] for rows in files for start in range(0, len(rows), size)]
    if (size == math.gcd(*runs) == 1) or any(len(group) < size or _has_several_prompts(group) for group in groups):
        listed = ", ".join(f"{count} of {run}" for run, count in sorted(Counter(runs).items())[:5])
        expected, fix = f"blocks of {max(size, 2)} rows with one prompt", "pass --map group=every:NUM_GENERATIONS"
        fix += ", or group=COLUMN; TRL: log without log_unique_prompts"
        raise InputError(rollouts[0].file, expected=expected, found=f"{listed} rows", fix=fix)
    return groups, size


def group_cautions(groups: Sequence[Group], least: float | None) -> list[str]:
    """Return what makes a log worth less than its size, in the order of weight.

    A rollout counts as passed with a reward above `least`; None: something else says what passed.
    """
    notes: list[str] = []
    rows = [row for group in groups for row in group]
    rewards = [row.reward for row in rows if row.reward is not None]
    num_least = rewards.count(least) if least is not None else len(rewards)
    if len({*rewards}) > 2 and 10 * num_least < len(rewards):
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
    flat = sum(len({row.reward for row in group} - {None}) < 2 for group in groups)
    if flat == len(groups):
        said = "no group has reward variance: all advantages are 0, so use it with another pool"
        notes.append(LabelNote(CAUTION + said))
    elif flat:
        notes.append(LabelNote(f"{flat} of {len(groups)} groups have no reward variance, so no gradient"))
    for name, meaning in (("hacked", "hacks"), ("gt_pass", "is right")):
        if unknown := [getattr(row, name) for row in rows].count(None):
            of_some = f" of {unknown} of {len(rows)}" if unknown < len(rows) else f" (--map {name}=COLUMN)"
            notes.append(LabelNote(f"{CAUTION}whether a rollout {meaning} is not known{of_some}"))
    return notes
