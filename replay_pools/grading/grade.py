"""Grader: submissions in, grades out, in order, in parallel; and the canary that tests the grader on known answers."""

import os
import queue
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from replay_pools.environments.base import Case, Problem
from replay_pools.environments.exploits import fence
from replay_pools.errors import InputError
from replay_pools.grading import sandbox, tiers
from replay_pools.grading.execution import InfrastructureError
from replay_pools.grading.executor import Worker
from replay_pools.grading.labels import GRADER_VERSION, Submission, grade_submission
from replay_pools.rollout import Grade

__all__ = ["GRADER_VERSION", "Grader", "Submission", "canary"]

ATTEMPTS = 3  # of one submission, each on a fresh worker, before an infrastructure failure is raised

_SELF_TEST = Problem(
    problem_id="self-test",
    env="grader",
    messages=(),
    func_name="add",
    starter="",
    setup_code="",
    canonical="class Solution:\n    def add(self, a, b):\n        return a + b\n",
    cases=(Case(args=(1, 1), expected=2),),
)


class Grader:
    """Isolated workers behind one `grade` call; a context manager.

    Args:
        workers: processes that grade in parallel; the number of CPUs by default.
        tier: "A" or "B"; by default the best that is available.
        unsafe_local: where no isolation is available, run with resource limits alone (recorded in every grade).
        twice: grade every submission twice; labels that disagree make it `flaky`.
        timeout_s: wall seconds of one execution (a grade is one to five executions, twice as many with `twice`).

    Raises:
        InputError: the isolation is not available, or (on entry) the isolated worker does not start.
    """

    isolation: str  # "A" | "B" | "unsafe-local"

    def __init__(
        self,
        *,
        workers: int | None = None,
        tier: str | None = None,
        unsafe_local: bool = False,
        twice: bool = False,
        timeout_s: float = 4.0,
    ) -> None:
        self.isolation = tiers.choose_tier(tier=tier, unsafe_local=unsafe_local)
        self._num_workers = workers or os.cpu_count() or 1
        self._twice = twice
        self._timeout_s = timeout_s
        self._idle: queue.SimpleQueue[tuple[int | None, Worker | None]] = queue.SimpleQueue()

    def describe(self) -> dict[str, str | bool]:
        """What a pool records of its grader."""
        return {"version": GRADER_VERSION, "isolation": self.isolation, "twice": self._twice}

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="probe-grading-"))
        self._threads = ThreadPoolExecutor(self._num_workers)
        uids = [None] * self._num_workers if self.isolation == tiers.UNSAFE else sandbox.free_uids(self._num_workers)
        for uid in uids:
            self._idle.put((uid, None))
        try:
            self._self_test()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            _uid, worker = self._idle.get()
            if worker is not None:
                worker.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def grade(self, submissions: Sequence[Submission]) -> list[Grade]:
        """The grade of every submission, in order.

        Raises:
            InputError: an unknown mode, or a problem whose setup code or assertions do not run.
            InfrastructureError: a submission could not be executed in ATTEMPTS attempts.
        """
        return list(self._threads.map(self._grade_one, submissions))

    def _grade_one(self, submission: Submission) -> Grade:
        """Grade on an idle worker; an infrastructure failure replaces the worker and tries again."""
        uid, worker = self._idle.get()
        attempt = 0
        try:
            while True:
                attempt += 1
                try:
                    worker = worker or Worker(
                        tier=self.isolation, uid=uid, directory=self._directory, timeout_s=self._timeout_s
                    )
                    return grade_submission(submission, worker.execute, self.isolation, twice=self._twice)
                except InfrastructureError as error:
                    if worker is not None:
                        worker.close()
                        worker = None
                    if attempt == ATTEMPTS:
                        where = f"problem {submission.problem.problem_id}, {ATTEMPTS} attempts"
                        raise InfrastructureError(f"{where}: {error}") from error
        finally:
            self._idle.put((uid, worker))

    def _self_test(self) -> None:
        """InputError unless the chosen isolation can be entered on this machine."""
        try:
            canary(self, [_SELF_TEST])
        except InfrastructureError as error:
            raise InputError(
                "grader isolation",
                expected=f"a worker that starts under tier {self.isolation}",
                found=str(error),
                fix="run as an ordinary user, or as a root that may change its user",
            ) from error


def canary(grader: Grader, problems: Iterable[Problem]) -> None:
    """Grade every problem's canonical solution and a stub that returns 0.

    Raises:
        InputError: the canonical solution of a named problem fails, or the stub passes.
    """
    problems = list(problems)
    stubs = [f"class Solution:\n    def {p.func_name}(self, *args, **kwargs):\n        return 0\n" for p in problems]
    sources = [*(problem.canonical for problem in problems), *stubs]
    grades = grader.grade(
        [
            Submission(problem=problem, completion=fence(source), mode="none")
            for problem, source in zip([*problems, *problems], sources, strict=True)
        ]
    )
    for problem, canonical, stub in zip(problems, grades[: len(problems)], grades[len(problems) :], strict=True):
        where, passed = f"problem {problem.problem_id}", f"{canonical.num_tests_passed} of {canonical.num_tests} tests"
        if not canonical.gt_correct:
            found = f"{passed} passed, error: {canonical.error}"
            raise InputError(where, expected="a canonical solution that passes", found=found)
        if stub.gt_correct:
            raise InputError(where, expected="a stub that fails", found="return 0 passes", fix="add a test")
