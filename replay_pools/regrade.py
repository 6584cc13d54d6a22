"""regrade_pool: grade the stored completions of a pool again with the current grader, into a new pool.

Where the problems are known (the pool or the caller names their environment), every label is graded again. Where they
are not (most logs), only the labels that need no tests are: fmt_ok, compiles and hacked. In mode run_tests a stub says
whether the completion hacks; in the modes of SHOWN it does where the exploit shows without a call of the method, else
the rollout keeps its labels, as in all other modes. The other labels are KEPT from the old pool and named in the
manifest. `replay_pools.agreement` compares the two pools label by label.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from replay_pools.environments.base import Case, Problem, count_tests
from replay_pools.environments.loopholes import known_mode
from replay_pools.environments.registry import all_problems, get_environment
from replay_pools.errors import InputError
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.labels import Submission
from replay_pools.pool import MANIFEST_NAME, Pool, PoolWriter
from replay_pools.rollout import UNKNOWN, Grade, Rollout
from replay_pools.storage.files import file_sha256, locked
from replay_pools.terminal import report

STEPS_PER_CALL = 8  # graded together, so that every worker is busy; a kill loses at most these steps
KEPT = ("passed", "gt_correct", "exploited", "reward")  # from the old pool, where the problems are unknown

SHOWN = ("sentinel", "stdout_marker", "file_marker", "exit_code")
_METHOD = re.compile(r"class Solution\b[^\n]*:\s+def (\w+)\(")
_USUAL_IMPORTS = ("typing", "collections", "itertools", "functools", "heapq", "bisect", "string", "math")
_SETUP = "\n".join(f"from {name} import *" for name in _USUAL_IMPORTS)  # what LeetCode submissions take for granted


def regrade_pool(
    directory: Path,
    source: Pool,
    grader: Grader,
    *,
    env: str | None = None,
    mode: str | None = None,
) -> Pool:
    """Write `source` with new grades to `directory`, or go on where an earlier run stopped.

    Args:
        directory: of the new pool.
        source: the old pool; it is not changed.
        grader: the current one; labels compare with the old ones when its code rule is `graded_code_rule` of `source`.
        env: environment of the problems; None = the one that the pool names.
        mode: loophole mode, for a source that does not record it.

    Raises:
        InputError: a problem that the environment lacks or whose method is not in the stored prompt, a failed canary,
            a mode that is unknown or cannot be graded, a directory that holds another pool, or one that another process
            is writing.
    """
    with locked(directory):
        problems = find_problems(source, env)
        # All groups are checked before the first is graded: a refusal after an hour would leave half a pool.
        groups: list[list[Rollout]] = []
        for group in source.steps:
            groups.append([_with_mode(rollout, mode, problems) for rollout in group])
        submissions = [[_submission(rollout, problems) for rollout in group] for group in groups]
        if not any(map(any, submissions)):
            raise InputError(
                f"pool {source.name}",
                expected=f"known problems, or rollouts of mode run_tests, {', '.join(SHOWN)}",
                found=f"mode {groups[0][0].env_mode}, whose channel needs the problem's inputs",
                fix="pass --problems FILE.jsonl",
            )
        canary(grader, (problems or {}).values())
        # Made after all checks, so that a refusal leaves no directory behind.
        writer = PoolWriter(directory, header=_header(source, grader, problems, env, mode))
        relabel = _relabel_without_tests if problems is None else Rollout.regraded
        todo = [i for i, group in enumerate(groups) if writer.read_step(group[0].step) is None]  # positions in `groups`
        for first in range(0, len(todo), STEPS_PER_CALL):
            batch = todo[first : first + STEPS_PER_CALL]
            grades = iter(grader.grade([each for i in batch for each in submissions[i] if each]))
            for i in batch:
                rows = zip(groups[i], submissions[i], strict=True)
                regraded = [relabel(rollout, next(grades)) if each else rollout for rollout, each in rows]
                writer.write_step(groups[i][0].step, regraded)
            report("steps", len(groups) - len(todo) + first + len(batch), len(groups))
        return writer.finish()


def find_problems(pool: Pool, env: str | None) -> dict[str, Problem] | None:
    """{problem_id: problem} of a pool, looked up in all splits of an environment.

    Args:
        pool: whose problems are wanted.
        env: name of the environment; None = the one that the pool names, of an imported log minicode alone.

    Returns:
        None when neither names an environment, as in most imported logs.

    Raises:
        InputError: no such environment, or it lacks a problem of the pool.
    """
    recorded = pool.manifest["plan"]["env"]
    if isinstance(recorded, list):
        # An imported log, which lists what its rollouts say: minicode alone needs no file.
        recorded = "minicode" if recorded == ["minicode"] else None
    name = env or recorded
    if name is None:
        return None
    try:
        environment = get_environment(name)
    except InputError as error:
        error.fix = error.fix if env else "pass --problems FILE.jsonl"
        raise error.at(f"problems of pool {pool.name}: {error.where}") from error
    known = all_problems(environment)
    wanted_ids = dict.fromkeys(group[0].problem_id for group in pool.steps)  # each once, in the order of the steps
    if missing_ids := [problem_id for problem_id in wanted_ids if problem_id not in known]:
        raise InputError(
            f"pool {pool.name}",
            expected=f"problem {missing_ids[0]} in {name}",
            found=f"none ({len(missing_ids)} of {len(wanted_ids)} problems are missing)",
            fix="pass --problems FILE.jsonl, the file that the pool was made from",
        )
    return {problem_id: known[problem_id] for problem_id in wanted_ids}


def _with_mode(rollout: Rollout, mode: str | None, problems: Mapping[str, Problem] | None) -> Rollout:
    """The rollout with a known loophole mode (recorded, else `mode`) and the environment of its problem."""
    where, recorded = f"step {rollout.step} sample {rollout.sample_id} mode", rollout.env_mode
    if recorded != UNKNOWN and mode not in (None, recorded):
        raise InputError(where, expected=f"{recorded}, as recorded", found=f"--mode {mode}", fix="leave it out")
    if recorded == UNKNOWN and mode is None:
        raise InputError(where, expected="a loophole mode", found="none recorded", fix="pass --mode MODE")
    env = problems[rollout.problem_id].env if problems else rollout.env
    return replace(rollout, env=env, env_mode=known_mode(mode or recorded))


def _submission(rollout: Rollout, problems: Mapping[str, Problem] | None) -> Submission | None:
    """The completion to grade, on its problem or, without problems, on a stand-in without real tests.

    None without problems in a mode that needs them.
    """
    if not problems and rollout.env_mode not in ("run_tests", *SHOWN):
        return None
    problem = problems[rollout.problem_id] if problems else _stand_in(rollout)
    # Ids alone do not identify a problem: another file may use the same ones.
    if problems and not re.search(rf"\b{re.escape(problem.func_name)}\b", rollout.prompt):
        raise InputError(
            f"problem {rollout.problem_id}",
            expected=f"its method {problem.func_name} in the prompt of step {rollout.step}",
            found="another problem",
            fix="pass the file that the pool was made from",
        )
    return Submission(problem=problem, completion=rollout.completion, mode=rollout.env_mode)


def _stand_in(rollout: Rollout) -> Problem:
    """A problem with the method that the prompt's starter code names and one case, whose result is not used.

    Raises:
        InputError: in mode run_tests, whose stub has that method, a prompt without starter code.
    """
    names = _METHOD.findall(rollout.prompt)
    if not names and rollout.env_mode == "run_tests":
        where = f"step {rollout.step} problem {rollout.problem_id}"
        expected, fix = "`class Solution:` and `def NAME(` in the prompt", "pass --problems FILE.jsonl"
        raise InputError(where, expected=expected, found="no starter code", fix=fix)
    return Problem(
        problem_id=rollout.problem_id,
        env=rollout.env,
        messages=(),
        func_name=names[-1] if names else "method",
        starter="",
        setup_code=_SETUP,
        canonical="",
        cases=(Case(args=(), expected=None),),
    )


def _relabel_without_tests(rollout: Rollout, grade: Grade) -> Rollout:
    """The rollout with those labels of a grade on a stand-in that need no tests.

    The labels of KEPT stay, and so does the name of the old grader, which gave them. Where either grading gave no
    label, neither does this. Where an exploit of SHOWN does not show, a call might: all labels stay.
    """
    if grade.no_label is not None:
        return rollout.regraded(grade)
    if not rollout.labelled or not (grade.hacked or rollout.env_mode == "run_tests"):
        return rollout
    new_grade = replace(
        rollout.grade,
        fmt_ok=grade.fmt_ok,
        compiles=grade.compiles,
        hacked=grade.hacked,
        mechanism=grade.mechanism,
        flaky=grade.flaky,
        detectors=grade.detectors,
        isolation=grade.isolation,
    )
    return replace(rollout, hacked=new_grade.hacked, fmt_ok=new_grade.fmt_ok, grade=new_grade)


def _header(
    source: Pool, grader: Grader, problems: Mapping[str, Problem] | None, env: str | None, mode: str | None
) -> dict[str, Any]:
    """The source's header, with the new grader, the tests, and where the rollouts come from."""
    plan = dict(source.manifest["plan"])
    if env:
        plan["env"] = env
    if mode:
        plan["env_mode"] = [mode]
    return source.header() | {
        "plan": plan,
        "grader": grader.describe(),
        "tests": None if problems is None else count_tests(problems.values()),
        "regraded_from": {
            "name": source.name,
            "path": str(source.path.resolve()),
            "sha256": file_sha256(source.path / MANIFEST_NAME),
            "grader": source.manifest["grader"],
            "kept": [*KEPT] if problems is None else [],
        },
    }
