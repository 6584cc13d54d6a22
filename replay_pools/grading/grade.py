"""`Grader` grades submissions in parallel on isolated workers; `canary` tests a grader on problems with known answers.

with Grader() as grader:
    grades = grader.grade([Submission(problem=problem, completion=text, mode="none")])
"""

import math
import os
import queue
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Self

from replay_pools.base.errors import InputError
from replay_pools.environments.base import Case, Problem
from replay_pools.environments.loopholes import fence, stub
from replay_pools.grading import sandbox, tiers
from replay_pools.grading.execution import Code, Execution, InfrastructureError, Outcome
from replay_pools.grading.executor import Worker
from replay_pools.grading.folders import closed_folder, copied_library, passable_folder
from replay_pools.grading.labels import GRADER_VERSION, Submission, grade_submission
from replay_pools.rollout import MIN_CPU_S, CodeRule, Grade

__all__ = ["GRADER_VERSION", "Grader", "Submission", "canary"]

ATTEMPTS = 3  # to grade one submission, each on a fresh worker, before an infrastructure failure is raised
CPU_MULTIPLE = 10  # times the CPU seconds of a problem's canonical solution: the limit of its submissions

# Its solution starts a thread and imports two modules that no worker preloads, one of them usually built from C: an
# isolation that refuses this would mark right solutions wrong.
_SELF_TEST = Problem(
    problem_id="self-test",
    env="grader",
    messages=(),
    func_name="add",
    starter="",
    setup_code="",
    canonical="import colorsys, resource, threading\n"
    "thread = threading.Thread(target=int); thread.start(); thread.join()\n"
    "class Solution:\n    def add(self, a, b):\n        return a + b\n",
    cases=(Case(args=(1, 1), expected=2),),
)


class Grader:
    """A pool of isolated workers that grade submissions; a context manager, which starts and ends the workers.

    An execution is limited to CPU_MULTIPLE times the CPU seconds of the problem's canonical solution, which `measure`
    (called by `canary`) finds out, and at least to `cpu_s`.

    Args:
        workers: number of processes that grade in parallel; the number of CPUs by default.
        tier: "A" or "B" (see `tiers`); by default the best that is available.
        unsafe_local: where no isolation is available, run with resource limits alone (recorded in every grade).
        code_rule: which blocks of a completion are its code (`blocks`).
        cpu_s: smallest limit, in CPU seconds of one execution, and the limit of problems that were not measured. A
            grade takes one to four executions.

    Raises:
        InputError: the isolation is not available, or (on entry) the isolated worker does not start.
    """

    isolation: str  # "A" | "B" | "unsafe-local"
    limits: Mapping[tuple[str, str], int]  # {(env, problem_id): CPU seconds} of the measured problems

    def __init__(
        self,
        *,
        workers: int | None = None,
        tier: str | None = None,
        unsafe_local: bool = False,
        code_rule: CodeRule = "solution",
        cpu_s: int = MIN_CPU_S,
    ) -> None:
        self.isolation = tiers.choose_tier(tier=tier, unsafe_local=unsafe_local)
        self._num_workers = workers or os.cpu_count() or 1
        self._code_rule: CodeRule = code_rule
        self._cpu_s = cpu_s
        self.limits = {}
        # One entry per worker: its uid, and None for a worker that has yet to be started.
        self._idle: queue.SimpleQueue[tuple[int | None, Worker | None]] = queue.SimpleQueue()

    def describe(self) -> dict[str, str | int]:
        """Return the grader's entry in the manifest of a pool."""
        # Without the measured limits: a run that continues measures them anew and has to find the same header.
        return {
            "version": GRADER_VERSION,
            "isolation": self.isolation,
            "code_rule": self._code_rule,
            "cpu_s": self._cpu_s,
            "cpu_multiple": CPU_MULTIPLE,
        }

    def __enter__(self) -> Self:
        self._directory = None if self.isolation == "A" else passable_folder()
        self._threads = ThreadPoolExecutor(self._num_workers)
        self._library: Path | None = None
        uids = [None] * self._num_workers if self.isolation == tiers.UNSAFE else sandbox.free_uids(self._num_workers)
        for uid in uids:
            self._idle.put((uid, None))
        try:
            if self._directory and uids[0] is not None and closed_folder():  # the sandbox of tier A opens it
                self._library = copied_library(self._directory)
            self._self_test()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._end_workers()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _end_workers(self) -> None:
        """End the workers, all of them idle; new ones start when they are needed."""
        entries = [self._idle.get() for _ in range(self._num_workers)]
        for uid, worker in entries:
            if worker is not None:
                worker.close()
            self._idle.put((uid, None))

    def grade(self, submissions: Sequence[Submission]) -> list[Grade]:
        """Return the grades of the submissions, in their order.

        Raises:
            InputError: an unknown mode, setup code that does not run, or a machine that is too busy.
            InfrastructureError: a submission could not be executed in ATTEMPTS attempts.
        """
        keys = [(submission.problem.env, submission.problem.problem_id) for submission in submissions]
        limits = [self.limits.get(key, self._cpu_s) for key in keys]
        return [grade for grade, _ in self._threads.map(self._grade_one, submissions, limits)]

    def grade_known(self, submissions: Sequence[Submission]) -> list[Grade]:
        """Return the grades of submissions that hold right answers: canonical solutions, and bots.

        The workers that run them run nothing else.

        Raises:
            InputError, InfrastructureError: as `grade`.
        """
        return [grade for grade, _ in self._grade_apart(submissions)]

    def measure(self, problems: Sequence[Problem]) -> list[Grade]:
        """Return the grades of the problems' canonical solutions; from now on the problems' limits follow from these.

        Raises:
            InputError, InfrastructureError: as `grade`.
        """
        canonicals = [
            Submission(problem=problem, completion=fence(problem.canonical), mode="none") for problem in problems
        ]
        graded = self._grade_apart(canonicals)
        measured: dict[tuple[str, str], int] = {}
        for problem, (_, used_s) in zip(problems, graded, strict=True):
            measured[problem.env, problem.problem_id] = max(self._cpu_s, math.ceil(CPU_MULTIPLE * used_s))
        self.limits = {**self.limits, **measured}
        return [grade for grade, _ in graded]

    def _grade_apart(self, submissions: Sequence[Submission]) -> list[tuple[Grade, float]]:
        """Grade on new workers, with a limit for right answers, and end the workers."""
        self._end_workers()
        try:
            return list(self._threads.map(self._grade_one, submissions, repeat(CPU_MULTIPLE * self._cpu_s)))
        finally:
            self._end_workers()

    def _grade_one(self, submission: Submission, cpu_s: int) -> tuple[Grade, float]:
        """Return (grade, most CPU seconds of its executions), graded on an idle worker.

        After an infrastructure failure it tries again on a new worker, with the same uid.
        """
        uid, worker = self._idle.get()
        used_s: list[float] = []

        def execute(code: Code, run: Execution) -> Outcome:
            nonlocal worker
            worker = worker or Worker(tier=self.isolation, uid=uid, directory=self._directory, library=self._library)
            try:
                outcome = worker.execute(code, run, cpu_s)
            except BaseException:  # what it does now is not known
                worker.close()
                worker = None
                raise
            used_s.append(outcome.cpu_s)
            return outcome

        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    grade = grade_submission(submission, execute, self.isolation, self._code_rule)
                    return grade, max(used_s, default=0.0)
                except InfrastructureError as error:
                    if attempt == ATTEMPTS:
                        where = f"problem {submission.problem.problem_id}, {ATTEMPTS} attempts"
                        raise InfrastructureError(f"{where}: {error}") from error
            raise AssertionError
        finally:
            self._idle.put((uid, worker))

    def _self_test(self) -> None:
        """Grade a known problem once; InputError when the chosen isolation does not work on this machine."""
        try:
            completions = (fence(_SELF_TEST.canonical), stub(_SELF_TEST))
            asked = [Submission(problem=_SELF_TEST, completion=text, mode="none") for text in completions]
            _check(_SELF_TEST, *self.grade(asked))
        except InfrastructureError as error:
            raise InputError(
                "grader isolation",
                expected=f"a worker that starts under tier {self.isolation}",
                found=str(error),
                fix="run as an ordinary user, or as a root that may change its user",
            ) from error


def canary(grader: Grader, problems: Iterable[Problem]) -> None:
    """Check the grader and the problems: every canonical solution must pass, and a stub that returns 0 must fail.

    It measures the problems: their limits of CPU seconds follow (`Grader.measure`).

    Raises:
        InputError: the canonical solution of a problem fails, or the stub passes; the message names the problem. Or the
            machine is too busy.
    """
    problems = list(problems)
    stubs = [Submission(problem=problem, completion=stub(problem), mode="none") for problem in problems]
    for problem, canonical, answer in zip(problems, grader.measure(problems), grader.grade(stubs), strict=True):
        _check(problem, canonical, answer)


def _check(problem: Problem, canonical: Grade, answer: Grade) -> None:
    """Check the grades of a problem's canonical solution and of a stub."""
    where = f"problem {problem.problem_id}"
    if not canonical.gt_correct:
        passed = f"{canonical.num_tests_passed} of {canonical.num_tests} tests passed"
        raise InputError(
            where, expected="a canonical solution that passes", found=f"{passed}, error: {canonical.error}"
        )
    if answer.gt_correct:
        raise InputError(where, expected="a stub that fails", found="return 0 passes", fix="add a test")
