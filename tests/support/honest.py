"""Honest uses of Python, to be tried under the isolation of a grader: `refused` says what of it fails there.

How honest programs begin is tried by tests/replay_pools/grading/preambles.toml. To add a use: an entry in USES.
"""

import functools
import json
import subprocess
from collections.abc import Callable, Sequence

from attacks import ECHO, problem

from replay_pools.environments.base import Problem
from replay_pools.environments.loopholes import fence
from replay_pools.grading import sandbox
from replay_pools.grading.labels import Submission
from replay_pools.rollout import Grade

UNWANTED = ("antigravity", "this")  # one opens a browser, the other prints

# What is done: how. Modules that some builds of Python lack are not used here.
USES = {
    "threads": """
import queue, signal, threading
from concurrent.futures import ThreadPoolExecutor
threading.stack_size(1 << 26)
with ThreadPoolExecutor(4) as pool: assert list(pool.map(str, range(9))) == list("012345678")
lock, done = threading.Lock(), threading.Event()
threading.Timer(0.01, done.set).start()
assert done.wait(5) and not threading.Event().wait(0.01)
named = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), 0), name="named")
named.start(); named.join()
""",
    "asyncio": """
import asyncio
async def double(x): await asyncio.sleep(0.001); return 2 * x
async def main():
    assert await asyncio.gather(*map(double, range(3))) == [0, 2, 4]
    assert await asyncio.to_thread(int, "3") == 3
    asyncio.get_running_loop().add_signal_handler(10, print)
asyncio.run(main())
""",
    "deep recursion": """
import sys, threading
sys.setrecursionlimit(20_000); threading.stack_size(1 << 28)
def depth(n): return n and 1 + depth(n - 1)
results = []
deep = threading.Thread(target=lambda: results.append(depth(10_000)))
deep.start(); deep.join()
assert results == [10_000]
""",
    "time": """
import datetime, time, timeit
time.sleep(0.001), time.time_ns(), time.monotonic(), time.perf_counter(), time.process_time(), time.thread_time()
time.localtime(), time.strftime("%c"), datetime.datetime.now().astimezone(), time.get_clock_info("time")
timeit.timeit("1", number=9)
""",
    "random numbers": """
import os, random, secrets, uuid
random.SystemRandom().random(), secrets.token_hex(), os.urandom(9), os.getrandom(9), uuid.uuid4(), uuid.uuid1()
open("/dev/urandom", "rb").read(9)
""",
    "memory": """
import array, mmap, tracemalloc
shared = mmap.mmap(-1, 1 << 20); shared[:3] = b"abc"; shared.resize(1 << 21); shared.madvise(mmap.MADV_DONTNEED)
large = [bytearray(1 << 20) for _ in range(100)]
grown = array.array("q")
for i in range(1 << 16): grown.append(i)
tracemalloc.start(); del large
""",
    "numbers": """
import decimal, fractions, math, statistics
decimal.getcontext().prec = 2_000; decimal.Decimal(2).sqrt(), fractions.Fraction(1, 3), math.factorial(2_000)
assert statistics.mean([1, 2]) == 1.5 and str(10 ** 4_000)
""",
    "the own marker file": """
import os
with open("result.txt", "r+") as file: file.write("text"); file.flush(); file.seek(0); file.truncate()
os.stat("result.txt"), os.path.realpath("result.txt"), os.path.exists("other"), os.access("result.txt", os.R_OK)
""",
    "the library's files": """
import encodings.idna, importlib.resources, inspect, os, tokenize, traceback
inspect.getsource(tokenize.tokenize), os.listdir(os.path.dirname(encodings.__file__)), "x".encode("cp1252")
try: 1 / 0
except ZeroDivisionError: assert traceback.format_exc()
""",
    "descriptors": """
import os, select, selectors, socket
ends = os.pipe(); os.write(ends[1], b"x"); copy = os.dup(ends[0])
assert select.select([copy], [], [], 1)[0] and os.read(copy, 1) == b"x"
os.set_blocking(ends[0], False), os.get_blocking(ends[0]), os.set_inheritable(copy, True), os.isatty(0), os.fstat(0)
with selectors.DefaultSelector() as waiting, socket.socketpair()[0] as end: waiting.register(end, 1); waiting.select(0)
os.close(copy)
""",
    "signals to itself": """
import faulthandler, os, signal
caught = []
for number in (signal.SIGALRM, signal.SIGUSR1): signal.signal(number, lambda *a: caught.append(a))
signal.alarm(0), signal.setitimer(signal.ITIMER_REAL, 0.005), signal.pause(), os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1), signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]), signal.sigpending()
assert len(caught) == 3
faulthandler.enable(open(os.devnull, "w"))
""",
    "limits and usage": """
import gc, os, resource, sys
soft, hard = resource.getrlimit(resource.RLIMIT_STACK); resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
resource.getrusage(resource.RUSAGE_SELF), os.times(), os.cpu_count(), os.sched_getaffinity(0), gc.collect()
""",
    "the machine": """
import locale, os, platform, shutil, sys
os.uname(), platform.platform(), os.getcwd(), os.getpid(), os.getppid(), os.getuid(), os.getgroups(), os.getpgid(0)
os.sysconf("SC_PHYS_PAGES"), shutil.get_terminal_size(), locale.setlocale(locale.LC_ALL, "C"), os.umask(0o22)
sys.stdin.read(), sys.stdout.isatty()
""",
    "profiles and logs": """
import cProfile, io, logging, unittest
logging.basicConfig(stream=io.StringIO()); logging.warning("text")
cProfile.Profile().runcall(sorted, [3, 1])
unittest.TextTestRunner(stream=io.StringIO()).run(unittest.FunctionTestCase(lambda: None))
""",
}

_IMPORT = "class Solution:\n    def f(self, name):\n        __import__(name)\n        return name\n"
# A process apart: to import every module would change this one. What a module prints is not ours.
_OUTSIDE = """
import contextlib, io, json, sys
names = []
for name in sorted(sys.stdlib_module_names):
    if name.startswith("_") or name in sys.argv[1:]: continue
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(BaseException):
        __import__(name)
        names.append(name)
print(json.dumps(names))
"""


@functools.cache
def library_modules() -> list[str]:
    """The modules of Python's library that can be imported outside of any isolation."""
    words = [sandbox.INTERPRETER, "-I", "-S", "-B", "-W", "ignore", "-c", _OUTSIDE, *UNWANTED]
    return json.loads(subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL).stdout)


def problems(modules: Sequence[str]) -> list[Problem]:
    """One problem per entry of USES, and one per eight modules, solved by what imports them."""
    uses = [problem(name, [(("x",), "x")], code + ECHO) for name, code in USES.items()]
    eights = [modules[i : i + 8] for i in range(0, len(modules), 8)]
    names_of = {f"import {', '.join(names)}": [((name,), name) for name in names] for names in eights}
    return uses + [problem(name, cases, _IMPORT) for name, cases in names_of.items()]


def refused(grade: Callable[[Sequence[Submission]], list[Grade]], asked: Sequence[Problem]) -> dict[str, str]:
    """What of `asked` fails where `grade` grades, which should be nothing: name -> the error."""
    submissions = [Submission(problem=each, completion=fence(each.canonical), mode="none") for each in asked]
    failures = {}
    for each, result in zip(asked, grade(submissions), strict=True):
        if not result.gt_correct:
            failures[each.problem_id] = result.error or "wrong answer or out of time"
    return failures
