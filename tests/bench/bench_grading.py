"""Grades per second: the warm grader against the plain way, by tier and number of workers. Part of `make bench`.

Work: right solutions of minicode in mode none, one execution each: what a grade costs when the solution costs nothing.
plain: for each grade a fresh `python -S` in a fresh sandbox, with the confinement, the job and the answers of the
       grader, and of the library only what those need.
floor: the same sandbox around `python -S -c pass`, which grades nothing: no fresh process a grade can be faster.
user:  the solutions themselves, called in this process: their share of the time of one worker.
"""

import contextlib
import json
import os
import secrets
import subprocess
import tempfile
from pathlib import Path

from timing import interleaved

from replay_pools.environments.loopholes import FILE_MARKER_NAME, fence
from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.grading import executor, sandbox, tiers
from replay_pools.grading.execution import Code, Execution, Outcome
from replay_pools.grading.executor import ENVIRONMENT, Worker
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission, grade_submission
from replay_pools.grading.oracle import AnswerStream

NUM_GRADES = 32
REPEATS = 5
CPU_S = 4

ONCE = """
import json, os, sys, types
os.setsid = lambda: None  # it leads its session already
package = types.ModuleType("isolated")
package.__path__ = [sys.argv[1]]
sys.modules["isolated"] = package
from isolated import sandbox, worker
arguments = json.loads(sys.argv[2])
confined = sandbox.Confinement.prepare(**arguments["confinement"])
worker._run_child(arguments["descriptors"], arguments["confinement"]["scratch"], confined)
"""


class Plain(Worker):
    """A worker that keeps nothing warm: each execution is an interpreter of its own in a sandbox of its own."""

    def __init__(self, *, tier: str, uid: int | None, directory: Path) -> None:
        self._tier, self._uid, self._directory = tier, uid, directory
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._outside, self._package = ([], str(Path(executor.__file__).parent))
        if tier == "A":
            self._outside, self._package = tiers.bwrap_command(), tiers.PACKAGE

    def start(self, code: str, *arguments: str, descriptors: tuple[int, ...] = ()) -> subprocess.Popen:
        """A fresh interpreter on `code`, in the sandbox if the tier has one."""
        words = [*self._outside, sandbox.INTERPRETER, *executor._FLAGS, "-c", code, *arguments]
        null = subprocess.DEVNULL
        return subprocess.Popen(
            words, pass_fds=descriptors, env=ENVIRONMENT, stdin=null, stdout=null, stderr=null, start_new_session=True
        )

    def floor(self) -> None:
        """Start and end of an interpreter that does nothing."""
        assert self.start("pass").wait() == 0

    def execute(self, code: Code, run: Execution) -> Outcome:
        """One answer run, as the grader does it but for the warm process."""
        stream = AnswerStream(nonce=secrets.token_hex(16), num_answers=len(code.inputs))
        with tempfile.TemporaryDirectory(dir=self._directory) as scratch:
            Path(scratch).chmod(0o755)
            Path(scratch, FILE_MARKER_NAME).touch(0o666)
            job = self._write_job(self._job(code, run, stream.nonce) | {"cpu_s": CPU_S})
            confinement = {
                "tier": self._tier,
                "uid": self._uid,
                "scratch": tiers.SCRATCH if self._tier == "A" else scratch,
            }
            answers, theirs = os.pipe()
            arguments = json.dumps({"confinement": confinement, "descriptors": [job, theirs]})
            try:
                process = self.start(ONCE, self._package, arguments, descriptors=(job, theirs))
                os.close(theirs)
                self._read(stream, answers, None, bytearray(), to_end=False, cpu_s=CPU_S)
                process.kill()
                process.wait()
            finally:
                os.close(answers)
        return Outcome(answers=stream, timed_out=False, cpu_s=0.0, exit_status=None, stdout="", file="")


def workload() -> list[Submission]:
    """Right solutions of the first problems."""
    problems = MinicodeEnvironment().problems("train")[:NUM_GRADES]
    return [Submission(problem=p, completion=fence(p.canonical), mode="none") for p in problems]


def call_here(work: list[Submission]) -> None:
    """The user code alone: compile, run and call every (trusted) solution in this process."""
    for submission in work:
        problem, namespace = submission.problem, {}
        exec(problem.setup_code, namespace)
        exec(problem.canonical, namespace)
        for case in problem.cases:
            getattr(namespace["Solution"](), problem.func_name)(*case.args)


def grade_all(work: list[Submission], grader: Grader) -> None:
    assert all(grade.gt_correct for grade in grader.grade(work)), "a right solution fails"


def grade_all_plainly(work: list[Submission], plain: Plain, tier: str) -> None:
    grades = [grade_submission(submission, plain.execute, tier) for submission in work]
    assert all(grade.gt_correct for grade in grades), "a right solution fails in the plain way"


def grading() -> None:
    """Print one line per tier that this machine has."""
    work, cores = workload(), os.cpu_count() or 1
    for tier, lacking in tiers.available_tiers().items():
        if lacking:
            print(f"grading tier {tier}: lacks {', '.join(lacking)}")
            continue
        with contextlib.ExitStack() as stack:
            one, many = (stack.enter_context(Grader(workers=n, tier=tier)) for n in (1, cores))
            (uid,) = sandbox.free_uids(1)
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            plain = Plain(tier=tier, uid=uid, directory=directory)
            ways = {
                "one": lambda one=one: grade_all(work, one),
                "many": lambda many=many: grade_all(work, many),
                "plain": lambda plain=plain, tier=tier: grade_all_plainly(work, plain, tier),
                "floor": lambda plain=plain: [plain.floor() for _ in work],
                "user": lambda: call_here(work),
            }
            times = interleaved(ways, REPEATS)
        each = {name: 1000 * taken.wall / len(work) for name, taken in times.items()}
        print(
            f"grading tier {tier}: {each['one']:.2f} ms a grade with 1 worker ({1000 / each['one']:.0f} a second), "
            f"{cores} workers x{each['one'] / each['many']:.2f}; plain / one {each['plain'] / each['one']:.1f} "
            f"({each['plain']:.1f} ms), floor / one {each['floor'] / each['one']:.1f} ({each['floor']:.1f} ms), "
            f"user code {each['user'] / each['one']:.0%}"
        )


if __name__ == "__main__":
    grading()
