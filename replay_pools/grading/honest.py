"""What honest solutions may use, to be tried under the isolation of a grader: `refused` says what of it fails there.

An isolation that refuses too much marks right solutions wrong. So `probe doctor` and the tests import every module of
Python's library and run every entry of USES; every grader runs QUICK when it starts.
To add something that solutions may use: add an entry to USES.
"""

import json
import subprocess
from collections.abc import Callable, Sequence

from replay_pools.environments.base import Case, Problem
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
    # How programs of competitions and model output begin; the standard input is empty.
    "the head of a program": """
import argparse, atexit, codecs, fileinput, functools, gc, getopt, io, itertools, os, random, sys, threading, warnings
assert sys.argv == [""] and sys.orig_argv == [""] and not sys.argv[1:] and sys.flags.safe_path
if len(sys.argv) > 1: sys.stdin = open(sys.argv[1])
if os.path.exists("input.txt"): sys.stdin = open("input.txt")
if os.environ.get("LOCAL") or "--local" in sys.argv: sys.stdin = open("input.txt")
options = argparse.ArgumentParser(); options.add_argument("--n", type=int, default=3)
assert options.parse_args().n == 3 and getopt.getopt(sys.argv[1:], "n:") == ([], [])
assert sys.stdin.fileno() == 0 and sys.stdin.readable() and not sys.stdin.isatty() and sys.stdin.name in (0, "<stdin>")
assert sys.stdin.encoding.lower().replace("-", "") == "utf8" and sys.__stdin__ is not None
for file in (sys.stdin, sys.stdin.buffer, sys.stdin.buffer.raw): assert not file.readline() and not file.read()
input = sys.stdin.readline; assert input() == ""
input = sys.stdin.buffer.readline; assert input() == b"" and input().decode().rstrip() == ""
input = lambda: sys.stdin.readline().rstrip("\\r\\n"); assert input() == ""
input = iter(sys.stdin.read().splitlines()).__next__
input = functools.partial(next, iter(sys.stdin.buffer.read().split()), b"0"); assert int(input()) == 0
lines = list(sys.stdin) + sys.stdin.readlines() + sys.stdin.buffer.readlines() + [*map(int, sys.stdin.read().split())]
lines += [*fileinput.input(files="-"), *os.read(0, 1 << 16), *itertools.islice(sys.stdin, 9)]
assert lines == [] and io.BytesIO(os.read(0, os.fstat(0).st_size)).readline() == b""
del input
try: input()
except EOFError: pass
else: raise AssertionError("an input where there is none")
class FastIO(io.IOBase):
    def __init__(self, file):
        self.fd, self.buffer = file.fileno(), io.BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
    def readline(self):
        self.buffer.write(os.read(self.fd, max(os.fstat(self.fd).st_size, 8192))); return self.buffer.readline()
    def flush(self): self.writable and os.write(self.fd, self.buffer.getvalue())
assert FastIO(sys.stdin).readline() == b"" and FastIO(sys.stdin).writable is False
FastIO(sys.stdout).flush()
sys.stdin = codecs.getreader("utf-8")(sys.stdin.buffer); assert sys.stdin.read() == ""
sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8"); assert sys.stdin.read() == ""
sys.stdin = open(0, closefd=False); sys.stdin.reconfigure(encoding="utf-8", errors="ignore")
sys.stdout.reconfigure(line_buffering=True), sys.stdout.buffer.write(b""), sys.stdout.write(""), sys.stdout.fileno()
sys.stderr.write("text"), sys.stderr.buffer.flush(), sys.stderr.fileno(), print("text", file=sys.stderr, flush=True)
sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", write_through=True)
print = functools.partial(print, flush=True); print(end="")
sys.setrecursionlimit(10 ** 6), threading.stack_size(1 << 27), sys.set_int_max_str_digits(0), gc.disable()
warnings.filterwarnings("ignore"), random.seed(0), atexit.register(int), sys.setswitchinterval(1), gc.enable()
assert open(0).read() == ""
del print
""",
    "profiles and logs": """
import cProfile, io, logging, unittest
logging.basicConfig(stream=io.StringIO()); logging.warning("text")
cProfile.Profile().runcall(sorted, [3, 1])
unittest.TextTestRunner(stream=io.StringIO()).run(unittest.FunctionTestCase(lambda: None))
""",
}

_TAIL = "class Solution:\n    def f(self, x):\n        return x\n"
_IMPORT = "class Solution:\n    def f(self, name):\n        __import__(name)\n        return name\n"
# One thread and two modules that no worker preloads, one of them built from C where Python is built as usual.
_QUICK = "import colorsys, resource, threading\nthread = threading.Thread(target=int)\nthread.start(); thread.join()\n"

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


def _problem(name: str, source: str, argument: str) -> Problem:
    """Answer the argument; the canonical solution uses what the problem is named after."""
    return Problem(
        problem_id=name,
        env="honest",
        messages=(),
        func_name="f",
        starter="",
        setup_code="",
        canonical=source,
        cases=(Case(args=(argument,), expected=argument),),
    )


QUICK = _problem("self-test of imports and threads", _QUICK + _TAIL, "x")


def library_modules() -> list[str]:
    """The modules of Python's library that can be imported outside of any isolation."""
    words = [sandbox.INTERPRETER, "-I", "-S", "-B", "-W", "ignore", "-c", _OUTSIDE, *UNWANTED]
    return json.loads(subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL).stdout)


def problems(modules: Sequence[str]) -> list[Problem]:
    """One problem per entry of USES, and one per module, solved by what imports it."""
    uses = [_problem(name, code + _TAIL, "x") for name, code in USES.items()]
    return uses + [_problem(f"import {name}", _IMPORT, name) for name in modules]


def refused(grade: Callable[[Sequence[Submission]], list[Grade]], asked: Sequence[Problem]) -> dict[str, str]:
    """What of `asked` fails where `grade` grades, which should be nothing: name -> the error."""
    submissions = [Submission(problem=each, completion=fence(each.canonical), mode="none") for each in asked]
    failures = {}
    for each, result in zip(asked, grade(submissions), strict=True):
        if not result.gt_correct:
            failures[each.problem_id] = result.error or "wrong answer or out of time"
    return failures
