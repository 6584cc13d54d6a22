"""What one execution leaves for another to read: pairs of a sender and a receiver, 0 bits in every isolation.

The sender may have seen an expected answer; the receiver is a later execution of the same worker, or one that runs at
the same time on another. A pair leaks when the receiver reads something else after its sender than after silence.
"""

import dataclasses
import functools
import os
import textwrap
import threading
import time
import tomllib
from pathlib import Path

import pytest

from replay_pools.environments.base import Case, Problem
from replay_pools.environments.loopholes import fence
from replay_pools.grading import sandbox, tiers
from replay_pools.grading.execution import Code, Execution
from replay_pools.grading.executor import Worker
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission

PAIRS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())["pair"]
ANSWER = Execution(action="answer")
HEAD = """
import ctypes, os, resource, signal, socket, sys, threading, time
LINK, FILE = LINK_PATH, os.path.join(os.path.dirname(os.__file__), "this.py")
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def attempt(action):
    try: return action()
    except OSError as error: return -error.errno
"""


def isolations():
    """Of root slow: submissions under its own uid, as those of an ordinary user are."""
    for tier, lacking in tiers.available_tiers().items():
        if not lacking and os.geteuid() == 0:
            yield (tier, True)
            yield pytest.param((tier, False), marks=pytest.mark.slow)
        elif not lacking:
            yield (tier, False)


@pytest.fixture(scope="module", params=isolations(), ids=lambda each: f"{each[0]}, {'own' if each[1] else 'same'} uid")
def workers(request, tmp_path_factory):
    """(execute on one worker, execute on another, a link with an old access time)."""
    tier, own_uid = request.param
    uids = sandbox.free_uids(2) if own_uid else [None, None]
    folder = tmp_path_factory.mktemp("grading")
    folder.chmod(0o755)
    link = folder / "link"
    link.symlink_to("nothing")
    both = [Worker(tier=tier, uid=uid, directory=folder) for uid in uids]

    def run(worker, body):
        source = HEAD.replace("LINK_PATH", repr(str(link))) + "def act():\n" + textwrap.indent(body, "    ")
        source += "\nclass Solution:\n    def f(self):\n        return act()\n"
        outcome = worker.execute(Code(setup="", source=source, func_name="f", inputs=((),)), ANSWER, cpu_s=20)
        assert outcome.answers.answered == [True], f"{outcome.answers.error}: {body}"
        return outcome.answers.answers[0]

    yield functools.partial(run, both[0]), functools.partial(run, both[1]), link
    link.unlink()
    for worker in both:
        worker.close()


def age(path):
    """Give a file an access time that the next access would renew."""
    os.utime(path, ns=(0, path.lstat().st_mtime_ns), follow_symlinks=False)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["name"])
def test_nothing_passes_from_one_execution_to_another(workers, pair):
    execute, beside, link = workers
    library_file = Path(execute("return FILE"))
    library_times = library_file.stat()
    readings = []
    try:
        for send in ("pass", pair["send"], "pass", pair["send"]):
            age(link)
            age(library_file)
            execute("return " + pair["read"]) if "counter" in pair else None
            before = execute("return " + pair["read"]) if "counter" in pair else 0
            if pair.get("beside"):
                sender = threading.Thread(target=beside, args=(send,))
                sender.start()
                time.sleep(0.3)
                readings.append(execute("return " + pair["read"]))
                sender.join()
            else:
                execute(send)
                after = execute("return " + pair["read"])
                readings.append(after - before if "counter" in pair else after)
    finally:
        os.utime(library_file, ns=(library_times.st_atime_ns, library_times.st_mtime_ns))
    quiet, sent = readings[::2], readings[1::2]
    if "counter" in pair:
        assert max(sent) - max(quiet) < pair["counter"] / 2, readings
    else:
        assert quiet == sent, readings


def test_a_worker_that_showed_what_is_expected_ends():
    """The weaker class of assertions, and canonical solutions; an execution without them keeps its worker."""
    solution = "class Solution:\n    def f(self, x):\n        return x\n"
    strong = Problem(
        problem_id="p", env="test", messages=(), func_name="f", starter="", setup_code="", canonical=solution,
        cases=(Case(args=(1,), expected=1),), assertions=("assert Solution().f(2) == 2",),
    )  # fmt: skip
    weak = dataclasses.replace(strong, assertions=("assert [Solution().f(x) for x in (1, 2)] == [1, 2]",))
    runs = []
    with Grader(workers=1) as grader:

        def worker():
            entry = grader._idle.get()
            grader._idle.put(entry)
            return entry[1]

        def grade(problem):
            (graded,) = grader.grade([Submission(problem=problem, completion=fence(solution), mode="sentinel")])
            assert graded.gt_correct
            return worker()

        first = grade(strong)
        first.execute = lambda code, run, cpu_s: runs.append(run) or Worker.execute(first, code, run, cpu_s)
        assert grade(strong) is first
        runs.clear()
        assert grade(weak) is None
        assert [run.last for run in runs] == [False, False, True], "what shows a value is not the last"
        assert first._process.poll() is not None
        grade(strong)
        grader.measure([strong])
        assert worker() is None
