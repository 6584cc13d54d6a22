"""What `probe check` cannot replay, in the words of its own options, before anything is written.

The verbs that it calls refuse the same, but later, and in the words of theirs.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING

from probe.settings.loss import check_recorded
from probe.settings.run import ReplayConfig
from probe.settings.words import Match
from replay_pools.errors import InputError

if TYPE_CHECKING:
    from replay_pools.logs.groups import Group
    from replay_pools.logs.sources import Log


def log_faults(log: "Log", config: ReplayConfig, per_pool: int | None) -> list[InputError]:
    """Why the rollouts of a log make no run of these settings.

    Args:
        per_pool: rollouts of a group as the user has said it; None: `group_size` of the log.
    """
    groups = [*_by_mark(log, config.source.match).values()]
    if fault := _no_update(log, groups):
        return [fault]
    faults = []
    size = per_pool or group_size(log)
    # The first group of every problem comes before the second of any.
    short = [group for group in groups[: config.steps] if len(group) < size]
    if size < 2:
        where = "--set source.per_pool"
        faults.append(InputError(where, expected="2 or more: one rollout has no baseline", found=str(size)))
    elif short and per_pool:
        fewest = min(short, key=len)
        expected = f"at most {len(fewest)}, the rollouts with a reward in the group of {fewest[0].where}"
        faults.append(InputError("--set source.per_pool", expected=expected, found=str(size)))
    elif short:
        found = f"1 in that of {short[0][0].where}, and in {len(short) - 1} others"
        expected = "two rollouts with a reward in every group"
        faults.append(InputError(log.source, expected=expected, found=found, fix="leave the others out of the log"))
    num_groups = sum(max(1, len(group) // size) for group in groups)
    if config.steps is not None and config.steps > num_groups:
        expected = f"at most {num_groups}, the groups of {size} rollouts in {log.source}"
        faults.append(InputError("--steps", expected=expected, found=str(config.steps)))
    return faults


def group_size(log: "Log") -> int:
    """Rollouts in a group that every problem with rewards fills; two at least, since one alone has no update."""
    sizes = [sum(row.reward is not None for row in group) for group in log.groups]
    return max(2, min(filter(None, sizes), default=2))


def _by_mark(log: "Log", match: Match) -> "dict[Hashable, Group]":
    """The rows with a reward by what makes them one group of the replay; several groups of one problem are one."""
    table: dict[Hashable, Group] = {}
    for number, rows in enumerate(log.groups):
        marks: dict[Match, Hashable] = {
            "problem": log.problem_ids[number],
            "prompt": rows[0].prompt_key,
            "none": number,
        }
        known = [row for row in rows if row.reward is not None]
        if known:
            table.setdefault(marks[match], []).extend(known)
    return table


def _no_update(log: "Log", groups: "list[Group]") -> InputError | None:
    """A log of which no group has an update, whatever the settings are."""
    if not groups:
        found = f"none of {sum(map(len, log.groups))} rollouts with one"
        fix = "pass --map reward=COLUMN"
        return InputError(f"{log.source} reward", expected="rewards that are numbers", found=found, fix=fix)
    if max(map(len, groups)) < 2:
        return InputError(
            log.source,
            expected="several rollouts with a reward to one prompt, whose rewards are compared",
            found=f"one to each of {len(groups)}",
            fix="log all of a group, or name what its rollouts have in common: --map group=COLUMN",
        )
    if all(len({row.reward for row in group}) < 2 for group in groups):
        return InputError(
            f"{log.source} reward",
            expected="a group whose rewards differ: no other has an update",
            found=f"equal rewards within each of {len(groups)} groups",
            fix="is the reward another column (--map reward=COLUMN)?",
        )
    return None


def check_loss(config: ReplayConfig, source: object) -> None:
    """Refuse a loss that needs what no log of another tool records.

    Raises:
        InputError: dr_grpo without its divisor, or recorded log-probabilities.
    """
    for objective in config.objectives().values():
        if objective.lacks_divisor:
            where = "--set objective.max_completion_length"
            raise InputError(where, expected="tokens, the divisor of dr_grpo", found="none given")
    check_recorded(config.objectives().values(), {str(source): None})


def check_machine(config: ReplayConfig) -> None:
    """Refuse a device that is not there, and an adapter that cannot be read.

    Raises:
        InputError: either of them.
    """
    from replay_pools.policy.adapters import adapter_sha
    from replay_pools.policy.load import adapter_directory, pick_device

    model = config.model
    pick_device(model.device)
    if model.name is not None and model.adapter is not None:
        adapter_sha(adapter_directory(model.name, model.adapter))


def check_coordinates(config: ReplayConfig) -> None:
    """Refuse more directions than the smallest module of the model has coordinates; loads no weights.

    Raises:
        InputError: too large a k, or targets that the model lacks.
    """
    from extraction.adapters.targets import find_targets, weight_matrix
    from replay_pools.policy.load import load_skeleton

    model, k = load_skeleton(str(config.model.name)), config.intervention.extraction.k
    for name in find_targets(model, config.model.targets):
        shape = weight_matrix(model.get_submodule(name), name).shape
        size = min(*shape, config.model.svd_rank or min(shape))
        if k > size:
            raise InputError("--k", expected=f"at most {size}, the coordinates of {name}", found=str(k))
