"""regrade_pool: grade the stored completions of a pool again with the current grader, into a new pool.

Every label is graded again, on the problems of the environment that the pool or the caller names. The manifest of the
new pool says in `regraded_from` where its rollouts come from and how far the labels agree, a row a label:

    {"label": "hacked", "n": 160, "rate": 0.99375, "old_only": 1, "new_only": 0}

`n` counts the rollouts with this label in both gradings, and `rate` is the share that agrees; None when n is 0.
`old_only` and `new_only` count rollouts with the label (a mechanism, the higher reward) in one grading alone. In an
imported pool the labels of INFERRED follow from its rewards and are not compared.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.base.files import file_sha256, locked
from replay_pools.environments.base import Problem, count_tests
from replay_pools.environments.loopholes import known_mode
from replay_pools.environments.registry import get_environment
from replay_pools.grading.blocks import default_rule, misses_code
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.labels import Submission
from replay_pools.pool import LABEL_NOTES, MANIFEST_NAME, Pool, PoolWriter
from replay_pools.rollout import LOGGED_GRADER, UNKNOWN, CodeRule, Rollout

STEPS_PER_CALL = 8  # graded together, so that every worker is busy; a kill loses at most these steps
LABELS = ("fmt_ok", "compiles", "passed", "gt_correct", "hacked", "exploited", "mechanism", "reward")
INFERRED = ("compiles", "passed", "exploited", "mechanism")


def regrade_pool(
    directory: Path, source: Pool, grader: Grader, *, env: str | None = None, mode: str | None = None
) -> Pool:
    """Write `source` with new grades to `directory`, or go on where an earlier run stopped.

    Args:
        directory: of the new pool.
        source: the old pool; it is not changed.
        grader: the current one; labels compare with the old ones when its code rule is `graded_code_rule` of `source`.
        env: environment of the problems; None = the one that the pool names.
        mode: loophole mode, for a source that does not record it.

    Raises:
        InputError: no environment is named, or it lacks a problem; a method is not in the stored prompt; a failed
            canary; a mode that is unknown; a directory that holds another pool, or one that another process is writing.
    """
    with locked(directory):
        problems = find_problems(source, env)
        # All groups are checked before the first is graded: a refusal after an hour would leave half a pool.
        groups = {
            group[0].step: [_with_mode(each, mode, problems[each.problem_id]) for each in group]
            for group in source.steps
        }
        canary(grader, problems.values())
        # Made after all checks, so that a refusal leaves no directory behind.
        writer = PoolWriter(directory, header=_header(source, grader, problems, env, mode))

        def regraded(_: Sequence[int], missing: list[int]) -> dict[int, list[Rollout]]:
            grades = iter(
                grader.grade([
                    Submission(problem=problems[each.problem_id], completion=each.answer, mode=each.env_mode)
                    for each in chain(*map(groups.__getitem__, missing))
                ])
            )  # fmt: skip
            return {step: [rollout.regraded(next(grades)) for rollout in groups[step]] for step in missing}

        writer.write_missing([*groups], STEPS_PER_CALL, regraded)
        new = [writer.read_step(step) or [] for step in groups]
        writer.header["regraded_from"]["agreement"] = agreement(chain(*source.steps), chain(*new))
        return writer.finish()


def graded_code_rule(pool: Pool, env: str | None = None) -> CodeRule:
    """Return the code rule that a pool records, else the one of its problems' environment."""
    return pool.manifest["grader"].get("code_rule") or default_rule(env or _environment(pool))


def count_missed(rollouts: Iterable[Rollout], rule: CodeRule) -> int:
    """Return the number of completions with code that the rule does not take (`blocks.misses_code`)."""
    return sum(misses_code(rollout.answer, rule) for rollout in rollouts)


def agreement(old: Iterable[Rollout], new: Iterable[Rollout]) -> list[dict[str, Any]]:
    """Return the rows of the manifest for two gradings of the same rollouts, in the order of LABELS."""
    pairs = list(zip(old, new, strict=True))
    rows: list[dict[str, Any]] = []
    for label in LABELS:
        levels: list[tuple[Any, Any]] = []  # before, after
        for before, after in pairs:
            one, other = (each.reward if label == "reward" else getattr(each.grade, label) for each in (before, after))
            is_inferred = label in INFERRED and before.grade.grader == LOGGED_GRADER
            if not is_inferred and one is not None and other is not None:
                levels.append((one, other))
        rate = sum(before == after for before, after in levels) / len(levels) if levels else None
        if label == "mechanism":
            # Any mechanism is more than none: two different ones disagree, but in neither direction.
            levels = [(before != "none", after != "none") for before, after in levels]
        old_only, new_only = (sum(before > after for before, after in side) for side in (levels, map(reversed, levels)))
        rows.append({"label": label, "n": len(levels), "rate": rate, "old_only": old_only, "new_only": new_only})
    return rows


def _environment(pool: Pool) -> str | None:
    """Return the name of the environment that a pool records; None for most imported logs."""
    recorded = pool.manifest["plan"]["env"]
    if isinstance(recorded, list):
        # An imported log lists the names in its rollouts; minicode alone needs no file.
        return "minicode" if recorded == ["minicode"] else None
    return recorded


def find_problems(pool: Pool, env: str | None) -> dict[str, Problem]:
    """Return {problem_id: problem} of a pool, looked up in all splits of `env` or of the environment that it names.

    Raises:
        InputError: none is named, there is no such environment, or it lacks a problem of the pool.
    """
    name, fix = env or _environment(pool), "pass --problems FILE.jsonl, the file that the pool was made from"
    if name is None:
        raise InputError(f"pool {pool.name}", expected="the name of its problems' environment", found="none", fix=fix)
    try:
        environment = get_environment(name)
    except InputError as error:
        error.fix = error.fix if env else fix
        raise error.at(f"problems of pool {pool.name}: {error.where}") from error
    known = environment.by_id()
    wanted_ids = dict.fromkeys(group[0].problem_id for group in pool.steps)  # each once, in the order of the steps
    if missing_ids := [problem_id for problem_id in wanted_ids if problem_id not in known]:
        found = f"none ({len(missing_ids)} of {len(wanted_ids)} problems are missing)"
        expected = f"problem {missing_ids[0]} in {name}"
        raise InputError(f"pool {pool.name}", expected=expected, found=found, fix=fix)
    return {problem_id: known[problem_id] for problem_id in wanted_ids}


def _with_mode(rollout: Rollout, mode: str | None, problem: Problem) -> Rollout:
    """Return the rollout with a known loophole mode (recorded, else `mode`) and the environment of its problem."""
    where, recorded = f"step {rollout.step} sample {rollout.sample_id} mode", rollout.env_mode
    if recorded != UNKNOWN and mode not in (None, recorded):
        raise InputError(where, expected=f"{recorded}, as recorded", found=f"--mode {mode}", fix="leave it out")
    if recorded == UNKNOWN and mode is None:
        raise InputError(where, expected="a loophole mode", found="none recorded", fix="pass --mode MODE")
    # Ids alone do not identify a problem: another file may use the same ones.
    if not re.search(rf"\b{re.escape(problem.func_name)}\b", rollout.prompt):
        expected = f"its method {problem.func_name} in the prompt of step {rollout.step}"
        fix = "pass the file that the pool was made from"
        raise InputError(f"problem {rollout.problem_id}", expected=expected, found="another problem", fix=fix)
    return replace(rollout, env=problem.env, env_mode=known_mode(mode or recorded))


def _header(
    source: Pool, grader: Grader, problems: Mapping[str, Problem], env: str | None, mode: str | None
) -> dict[str, Any]:
    """Return the source's header, with the new grader, the tests, and where the rollouts come from."""
    plan = dict(source.manifest["plan"])
    if env:
        plan["env"] = env
    if mode:
        plan["env_mode"] = [mode]
    header = {name: value for name, value in source.header().items() if name != LABEL_NOTES}
    return header | {
        "plan": plan,
        "grader": grader.describe(),
        "tests": count_tests(problems.values()),
        "regraded_from": {
            "name": source.name,
            "path": str(source.path.resolve()),
            "sha256": file_sha256(source.path / MANIFEST_NAME),
            "grader": source.manifest["grader"],
        },
    }
