"""`Grader` grades submissions in parallel on isolated workers; `canary` tests a grader on problems with known answers.

with Grader() as grader:
    grades = grader.grade([Submission(problem=problem, completion=text, mode="none")])
"""

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
from replay_pools.grading import honest, sandbox, tiers
from replay_pools.grading.execution import InfrastructureError
from replay_pools.grading.executor import Worker
from replay_pools.grading.labels import GRADER_VERSION, Submission, grade_submission
from replay_pools.rollout import Grade

__all__ = ["GRADER_VERSION", "Grader", "Submission", "canary"]

ATTEMPTS = 3  # to grade one submission, each on a fresh worker, before an infrastructure failure is raised

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
    """A pool of isolated workers that grade submissions; a context manager, which starts and ends the workers.

    Args:
        workers: number of processes that grade in parallel; the number of CPUs by default.
        tier: "A" or "B" (see `tiers`); by default the best that is available.
        unsafe_local: where no isolation is available, run with resource limits alone (recorded in every grade).
        twice: grade every submission twice; it is `flaky` when the labels differ.
        timeout_s: wall seconds of one execution. A grade takes one to five executions, twice as many with `twice`.

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
        # One entry per worker: its uid, and None for a worker that has yet to be started.
        self._idle: queue.SimpleQueue[tuple[int | None, Worker | None]] = queue.SimpleQueue()

    def describe(self) -> dict[str, str | bool]:
        """The grader as the manifest of a pool records it."""
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
        """The grades of the submissions, in their order.

        Raises:
            InputError: an unknown mode, or a problem whose setup code or assertions do not run.
            InfrastructureError: a submission could not be executed in ATTEMPTS attempts.
        """
        return list(self._threads.map(self._grade_one, submissions))

    def _grade_one(self, submission: Submission) -> Grade:
        """Grade on an idle worker; after an infrastructure failure try again on a new worker, with the same uid."""
        uid, worker = self._idle.get()
        attempt = 0
        try:
            while True:
                attempt += 1
                try:
                    # Workers start on their first use, and again after a failure.
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
        """Grade a known problem once; InputError when the chosen isolation does not work on this machine."""
        try:
            canary(self, [_SELF_TEST, honest.QUICK])
        except InfrastructureError as error:
            raise InputError(
                "grader isolation",
                expected=f"a worker that starts under tier {self.isolation}",
                found=str(error),
                fix="run as an ordinary user, or as a root that may change its user",
            ) from error


def canary(grader: Grader, problems: Iterable[Problem]) -> None:
    """Check the grader and the problems: every canonical solution must pass, and a stub that returns 0 must fail.

    Raises:
        InputError: the canonical solution of a problem fails, or the stub passes; the message names the problem.
    """
    problems = list(problems)
    canonicals, stubs = [], []
    for problem in problems:
        stub = f"class Solution:\n    def {problem.func_name}(self, *args, **kwargs):\n        return 0\n"
        canonicals.append(Submission(problem=problem, completion=fence(problem.canonical), mode="none"))
        stubs.append(Submission(problem=problem, completion=fence(stub), mode="none"))
    grades = grader.grade([*canonicals, *stubs])  # in one call, so that all workers stay busy
    for problem, canonical, stub in zip(problems, grades[: len(problems)], grades[len(problems) :], strict=True):
        where = f"problem {problem.problem_id}"
        if not canonical.gt_correct:
            passed = f"{canonical.num_tests_passed} of {canonical.num_tests} tests passed"
            raise InputError(
                where, expected="a canonical solution that passes", found=f"{passed}, error: {canonical.error}"
            )
        if stub.gt_correct:
            raise InputError(where, expected="a stub that fails", found="return 0 passes", fix="add a test")
