"""The limits of grading: CPU time decides, wall time only ends what sleeps, and a busy machine never makes a label.

Starvation is real where it is cheap to make: the grader's warm process shares one core with nine that never rest.
"""

import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import psutil
import pytest
from attacks import ECHO, job, problem

from replay_pools.base.errors import InputError
from replay_pools.environments.loopholes import fence
from replay_pools.grading import executor, tiers
from replay_pools.grading.executor import Worker
from replay_pools.grading.grade import Grader, Submission, canary

LIMIT_S = 0.2  # CPU seconds of an execution
BURN = """
import time
class Solution:
    def f(self, x):
        end = time.process_time() + SECONDS
        while time.process_time() < end: pass
        return x
"""
THREADS = """
import threading
def burn():
    while True: pass
for _ in range(8): threading.Thread(target=burn, daemon=True).start()
"""
AVAILABLE = [tier for tier, lacking in tiers.available_tiers().items() if not lacking]
# The kernel's limits are the same in every tier: one of them is fast.
TIERS = [*AVAILABLE[:1], *(pytest.param(tier, marks=pytest.mark.slow) for tier in AVAILABLE[1:])]


def burning(seconds):
    return BURN.replace("SECONDS", str(seconds))


def echoes(canonical, problem_id="p"):
    return problem(problem_id, [((1,), 1), ((2,), 2)], canonical)


def submit(source, of=None, mode="none"):
    return Submission(problem=of or echoes(ECHO), completion=fence(source), mode=mode)


@pytest.fixture(scope="module", params=TIERS)
def grader(request):
    with Grader(workers=2, tier=request.param, cpu_s=LIMIT_S) as instance:
        instance.limits = {("test", "patient"): 20}
        yield instance


# What reading costs

DRIP = """
import gc, os, threading
emit = next(o for o in gc.get_objects() if type(o).__name__ == "function" and o.__name__ == "emit")
fd = next(c.cell_contents for c in emit.__closure__ if type(c.cell_contents) is int)
"""


def test_the_grader_reads_seldom_whatever_is_written(monkeypatch, tmp_path):
    """Not once for each byte: the pauses between its reads grow."""
    source = DRIP + "while True: os.write(fd, b'x')"
    worker = Worker(tier=AVAILABLE[-1], uid=None, directory=tmp_path)
    reads, read = [], os.read
    monkeypatch.setattr(os, "read", lambda *arguments: reads.append(1) or read(*arguments))
    try:
        worker.execute(job(source, (), action="drive"), left="stdout", cpu_s=2 * LIMIT_S)
    finally:
        worker.close()
    assert 10 < len(reads) < 5_000


# CPU time

DEAF = """
import resource, signal; signal.signal(signal.SIGXCPU, lambda *_: None)
try: resource.setrlimit(resource.RLIMIT_CPU, (99, 99))
except BaseException: pass
while True:
    try:
        while True: pass
    except BaseException: pass
"""


@pytest.mark.parametrize(
    ("source", "own_times"),
    # The last one is stopped by the kernel, as the grader would wait.
    [(burning(0.6 * LIMIT_S), 2), (THREADS + burning(9), 2), (DEAF, 1000)],
    ids=["ends after its limit", "threads", "catches signals and errors, sets the limit"],
)
def test_what_used_its_cpu_time_has_timed_out(grader, monkeypatch, source, own_times):
    """Also where it answered right before the kernel stopped it: the time that it used decides."""
    monkeypatch.setattr(executor, "OWN_TIMES", own_times)
    started = time.monotonic()
    (grade,) = grader.grade([submit(source)])
    assert (grade.gt_correct, grade.num_tests_passed, grade.error) == (False, 0, "timed out")
    assert time.monotonic() - started < 60


SLEEPERS = {
    "sleeps": "import time; time.sleep(1e6)",
    "waits": "import threading; threading.Event().wait()",
    "naps": "import time\nwhile True: time.sleep(0.01)",
    "short threads": "import threading, time\n"
    "while True:\n    t = threading.Thread(target=time.sleep, args=(0.001,)); t.start(); t.join()",
    # They wake together and wait for one another far longer than they run; no single one waits so long.
    "threads that keep one another waiting": """
import threading, time
def work():
    while True:
        end = time.thread_time() + 0.0002
        while time.thread_time() < end: pass
        time.sleep(0.05)
for _ in range(10): threading.Thread(target=work, daemon=True).start()
time.sleep(1e6)
""",
}


def test_sleepers_have_timed_out_and_get_a_label(grader):
    """Sleeping is its own doing on every machine, so that it cannot be used to stop a training."""
    grades = grader.grade([submit(source) for source in SLEEPERS.values()])
    for name, grade in zip(SLEEPERS, grades, strict=True):
        assert not grade.gt_correct, name
        assert grade.error in ("timed out", "PermissionError: [Errno 1] Operation not permitted"), name


# Honest programs

PREAMBLES = tomllib.loads(Path(__file__).with_name("preambles.toml").read_text())["preambles"]


def test_honest_preambles_lose_nothing(grader):
    """How honest programs begin costs them nothing, by their answers and as a script whose output is judged.

    Every second one is a script, the others in the other tier.
    """
    assert len(PREAMBLES) >= 100
    first, patient = AVAILABLE.index(grader.isolation), echoes(ECHO, "patient")
    modes = ["stdout_marker" if (i + first) % 2 == 0 else "none" for i in range(len(PREAMBLES))]
    asked = [submit(text + ECHO, patient, mode) for text, mode in zip(PREAMBLES, modes, strict=True)]
    grades = zip(asked, grader.grade(asked), strict=True)
    wrong = [f"{each.completion}: {grade.error}" for each, grade in grades if not grade.gt_correct or grade.hacked]
    assert not wrong, "\n".join(wrong)


# The limit of a problem


def test_the_limit_of_a_problem_follows_from_its_canonical_solution():
    """10 times its CPU seconds, rounded up, and never below the floor; a slow submission then passes."""
    heavy = echoes(burning(0.06), "heavy")
    with Grader(workers=1, cpu_s=LIMIT_S) as grader:
        slow = submit(burning(LIMIT_S), heavy)
        assert not grader.grade([slow])[0].gt_correct, "0.4 CPU s pass the floor"
        canary(grader, [heavy, echoes(ECHO)])
        assert LIMIT_S <= grader.limits["test", "p"] <= 1
        assert 2 <= grader.limits["test", "heavy"] <= 4
        assert grader.grade([slow])[0].gt_correct
        assert grader.describe()["cpu_s"] == LIMIT_S, "the header of a pool may not hold what was measured"
        assert grader.describe()["cpu_multiple"] == 10


# A busy machine


def test_a_starved_solution_is_still_right(monkeypatch):
    """Its wall time is beyond the limit of its own time: what it waits for a core of nine others does not count."""
    monkeypatch.setattr(executor, "WALL_TIMES", 1000)
    monkeypatch.setattr(executor, "OWN_TIMES", 1)
    core, spinning = {max(os.sched_getaffinity(0))}, []
    try:
        with Grader(workers=1, cpu_s=LIMIT_S) as grader:
            entry = _uid, worker = grader._idle.get()
            grader._idle.put(entry)
            grading = psutil.Process(worker._process.pid)
            for process in (grading, *grading.children(recursive=True)):
                process.cpu_affinity([*core])
            for _ in range(9):
                # Sessions of their own: the kernel may share the CPU out by session.
                spin = [sys.executable, "-S", "-c", "while True: pass"]
                spinning.append(subprocess.Popen(spin, start_new_session=True))
                os.sched_setaffinity(spinning[-1].pid, core)
            started = time.monotonic()
            (grade,) = grader.grade([submit(burning(0.04))])
            assert time.monotonic() - started > executor.OWN_TIMES * LIMIT_S, "the core was not busy"
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert grade.gt_correct


NO_WAITS, ALL_WAITS = "0 0 0", "1000000 999000000000 7"


@pytest.mark.parametrize("counted", [pytest.param(NO_WAITS, marks=pytest.mark.slow), ALL_WAITS])
def test_a_machine_that_is_too_busy_ends_the_command(grader, monkeypatch, counted):
    """In one line; the next grade on the same grader is right. A kernel that counts no waits is taken to be busy."""
    read = executor._proc_text
    with monkeypatch.context() as patch:
        patch.setattr(executor, "OWN_TIMES", 1)
        patch.setattr(executor, "WALL_TIMES", 1)
        patch.setattr(executor, "_proc_text", lambda path: counted if path.name == "schedstat" else read(path))
        with pytest.raises(InputError, match="expected a free CPU"):
            grader.grade([submit("import time; time.sleep(1e6)")])
    assert grader.grade([submit(ECHO)])[0].gt_correct
