"""`Grader` grades submissions in parallel on isolated workers; `canary` tests a grader on problems with known answers.

with Grader() as grader:
    grades = grader.grade([Submission(problem=problem, completion=text, mode="none")])
"""

import math
import os
import queue
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any, Self

from replay_pools.base.errors import InputError
from replay_pools.environments.base import Case, Problem
from replay_pools.environments.loopholes import fence, stub
from replay_pools.grading import sandbox, tiers
from replay_pools.grading.executor import InfrastructureError, Outcome, Place, Worker
from replay_pools.grading.folders import closed_folder, copied_library, passable_folder
from replay_pools.grading.labels import GRADER_VERSION, Submission, grade_submission
from replay_pools.rollout import MIN_CPU_S, CodeRule, Grade

__all__ = ["GRADER_VERSION", "Grader", "Submission", "canary"]

Idle = queue.SimpleQueue[tuple[int | None, Worker | None]]  # uids, with None for a worker that has yet to be started
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

    An execution is limited to CPU_MULTIPLE times the CPU seconds of the problem's canonical solution, which `canary`
    measures, and at least to `cpu_s`.

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
    limits: Mapping[tuple[str, str], float]  # {(env, problem_id): CPU seconds} of the measured problems

    def __init__(
        self,
        *,
        workers: int | None = None,
        tier: str | None = None,
        unsafe_local: bool = False,
        code_rule: CodeRule = "solution",
        cpu_s: float = MIN_CPU_S,
    ) -> None:
        self.isolation = tiers.choose_tier(tier=tier, unsafe_local=unsafe_local)
        self._num_workers = workers or os.cpu_count() or 1
        self._code_rule: CodeRule = code_rule
        self._cpu_s = cpu_s
        self.limits = {}

    def describe(self) -> dict[str, str | float]:
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
        self._stack = ExitStack()
        try:
            self._directory = None if self.isolation == "A" else passable_folder()
            if self._directory:
                self._stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            unsafe = self.isolation == tiers.UNSAFE
            self._uids = [None] * self._num_workers if unsafe else sandbox.free_uids(self._num_workers)
            self._library: Path | None = None
            if self._directory and self._uids[0] is not None and closed_folder():  # the sandbox of tier A opens it
                self._library = copied_library(self._directory)
            self._idle = self._stack.enter_context(self._new_workers())
            self._threads = ThreadPoolExecutor(self._num_workers)
            self._stack.callback(self._threads.shutdown, cancel_futures=True)
            self._self_test()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def _new_workers(self) -> Iterator[Idle]:
        """Provide workers that have yet to be started; end each as soon as it is idle."""
        idle: Idle = queue.SimpleQueue()
        for uid in self._uids:
            idle.put((uid, None))
        try:
            yield idle
        finally:
            for uid, worker in [idle.get() for _ in self._uids]:
                if worker is not None:
                    worker.close()
                idle.put((uid, None))  # for a call that was interrupted and still asks

    def grade(self, submissions: Sequence[Submission], *, known: bool = False) -> list[Grade]:
        """Return the grades of the submissions, in their order.

        Args:
            submissions: what to grade.
            known: they hold right answers (canonical solutions, bots): the workers that run them run nothing else and
                end, and the limit is one for right answers.

        Raises:
            InputError: an unknown mode, setup code that does not run, or a machine that is too busy.
            InfrastructureError: a submission could not be executed in ATTEMPTS attempts.
        """
        return [grade for grade, _ in self._timed(submissions, known=known)]

    def _timed(self, submissions: Sequence[Submission], *, known: bool) -> list[tuple[Grade, float]]:
        """Return (grade, most CPU seconds of its executions) of every submission, as `grade`."""
        problems, limits = [submission.problem for submission in submissions], {} if known else self.limits
        floor = self._cpu_s * (CPU_MULTIPLE if known else 1)
        cpu_s = [limits.get((problem.env, problem.problem_id), floor) for problem in problems]
        with self._new_workers() if known else nullcontext(self._idle) as idle:
            return list(self._threads.map(self._grade_one, submissions, cpu_s, repeat(idle)))

    def _grade_one(self, submission: Submission, cpu_s: float, idle: Idle) -> tuple[Grade, float]:
        """Grade on an idle worker; after an infrastructure failure again on a new one, with the same uid."""
        uid, worker = idle.get()
        used_s: list[float] = []

        def execute(job: dict[str, Any], *, left: Place | None) -> Outcome:
            nonlocal worker
            worker = worker or Worker(tier=self.isolation, uid=uid, directory=self._directory, library=self._library)
            try:
                outcome = worker.execute(job, left=left, cpu_s=cpu_s)
            except BaseException:  # what it does now is not known
                worker.close()
                worker = None
                raise
            used_s.append(outcome.cpu_s)
            return outcome

        try:
            attempts = 0
            while True:
                try:
                    grade = grade_submission(submission, execute, self.isolation, self._code_rule)
                    return grade, max(used_s, default=0.0)
                except InfrastructureError as error:
                    attempts += 1
                    if attempts == ATTEMPTS:
                        where = f"problem {submission.problem.problem_id}, {ATTEMPTS} attempts"
                        raise InfrastructureError(f"{where}: {error}") from error
        finally:
            idle.put((uid, worker))

    def _self_test(self) -> None:
        """Grade a known problem once; InputError when the chosen isolation does not work on this machine."""
        try:
            _check(_SELF_TEST, *self.grade([_plain(_SELF_TEST), _stub(_SELF_TEST)]))
        except InfrastructureError as error:
            raise InputError(
                "grader isolation",
                expected=f"a worker that starts under tier {self.isolation}",
                found=str(error),
                fix="run as an ordinary user, or as a root that may change its user",
            ) from error


def canary(grader: Grader, problems: Iterable[Problem]) -> None:
    """Check the grader and the problems: every canonical solution must pass, and a stub that returns 0 must fail.

    From now on the limit of a problem is CPU_MULTIPLE times the CPU seconds of its canonical solution.

    Raises:
        InputError: the canonical solution of a problem fails, or the stub passes; the message names the problem. Or the
            machine is too busy.
    """
    problems = list(problems)
    canonicals = grader._timed([*map(_plain, problems)], known=True)
    measured = {
        (problem.env, problem.problem_id): max(grader._cpu_s, math.ceil(CPU_MULTIPLE * used_s))
        for problem, (_, used_s) in zip(problems, canonicals, strict=True)
    }
    grader.limits = {**grader.limits, **measured}
    stubs = grader.grade([*map(_stub, problems)])
    for problem, (canonical, _), answer in zip(problems, canonicals, stubs, strict=True):
        _check(problem, canonical, answer)


def _plain(problem: Problem) -> Submission:
    return Submission(problem=problem, completion=fence(problem.canonical), mode="none")


def _stub(problem: Problem) -> Submission:
    return Submission(problem=problem, completion=stub(problem), mode="none")


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
