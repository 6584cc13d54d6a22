"""A starter set of attacks; each is followed by an honest grade that must be right.

Every test runs twice as root: with submissions under a uid of their own, and under the grader's own uid, which is what
an ordinary user has (and, being root, is the stronger attacker).
"""

import errno
import os
import struct
from pathlib import Path

import pytest

from replay_pools.environments.base import Case, Problem
from replay_pools.environments.exploits import fence
from replay_pools.errors import InputError
from replay_pools.grading import Grader, Submission, sandbox, seccomp
from replay_pools.grading.execution import Code, Run
from replay_pools.grading.executor import ENVIRONMENT, Worker

ECHO = Problem(
    problem_id="echo",
    env="test",
    messages=(),
    func_name="f",
    starter="class Solution:\n    def f(self, x):",
    setup_code="from typing import *",
    canonical="class Solution:\n    def f(self, x):\n        return x\n",
    cases=tuple(Case(args=(value,), expected=value) for value in (1, [1, 2], "a", 0.5, {"k": [True]})),
)
HONEST = Submission(problem=ECHO, completion=fence(ECHO.canonical), mode="none")


@pytest.fixture(scope="module", params=["own uid", "same uid"])
def grader(request):
    """One worker, so that the honest grade follows on the process that was attacked."""
    if request.param == "own uid" and os.geteuid() != 0:
        pytest.skip("only root can give submissions a uid of their own")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "same uid":
            patch.setattr(sandbox, "free_uids", lambda count: [None] * count)
        with Grader(workers=1, timeout_s=0.5) as instance:
            yield instance


def grade_then_honest(grader, source, mode="none", problem=ECHO):
    """The grade of an attack, after checking that the next honest grade is right."""
    attack, honest = grader.grade([Submission(problem=problem, completion=fence(source), mode=mode), HONEST])
    assert honest.gt_correct, f"the attack broke the next grade: {honest}"
    return attack


FORGE = r"""
import os
for fd in range(3, 1024):
    for line in (b'{"i":0,"value":1}\n', b'{"compiled":true}\n{"i":0,"value":[1,2]}\n'):
        try: os.write(fd, line)
        except OSError: pass
"""
STEAL_EMIT = """
import sys
frame = sys._getframe()
while frame and "emit" not in frame.f_locals: frame = frame.f_back
emit = frame.f_locals["emit"]
for i in range(5): emit(i=i, value=True)
"""
WRONG = {
    "sys.exit": "import sys; sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "os._exit in the method": "import os\nclass Solution:\n    def f(self, x): os._exit(0)",
    "SystemExit in the method": "class Solution:\n    def f(self, x): raise SystemExit(0)",
    "quit": "quit()",
    "abort": "import os; os.abort()",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nclass Solution: pass",
    "always equal": """
class E:
    __eq__ = lambda *a: True
    __ne__ = lambda *a: False
    __hash__ = lambda s: 0
class Solution:
    def f(self, x): return E()""",
    "always equal str": """
class E(str):
    __eq__ = lambda *a: True
class Solution:
    def f(self, x): return E(x) if x == "a" else x""",
    "True for 1": "class Solution:\n    def f(self, x): return True if x == 1 else x",
    "tuple for list": "class Solution:\n    def f(self, x): return tuple(x) if type(x) is list else x",
    "1 for True": "class Solution:\n    def f(self, x): return {'k': [1]} if type(x) is dict else x",
    "nan": "class Solution:\n    def f(self, x): return float('nan')",
    "generator": "class Solution:\n    def f(self, x): yield x",
    "patched builtins": """
import builtins, json
builtins.all = builtins.any = builtins.isinstance = lambda *a: True
json.dumps = lambda *a, **k: '{"i": 0, "value": 1}'
class Solution:
    def f(self, x): return 7""",
    "AssertionError": "import builtins; builtins.AssertionError = Warning\nclass Solution:\n    def f(self, x): pass",
    "forged stdout": "print('{\"i\":0,\"value\":1}', flush=True)\nclass Solution:\n    def f(self, x): pass",
    "forged descriptors": FORGE + "class Solution:\n    def f(self, x): return 2",
    "stolen emit": STEAL_EMIT,
    "partial line": FORGE.replace(r'1}\n', "") + "import time; time.sleep(60)",
    "flood": """
import os
while True:
    for fd in range(1, 64):
        try: os.write(fd, b"x" * 9999)
        except OSError: pass""",
    "infinite loop": "while True: pass",
    "infinite loop ignoring signals": """
import signal
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass""",
    "sleep": "import time; time.sleep(60)",
    "memory bomb": "x = [0] * 10**10",
    "growing memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "recursion": "import sys; sys.setrecursionlimit(10**9)\ndef g(): return g()\ng()",
    "fork bomb": "import os\nfor _ in range(6): os.fork()\nclass Solution:\n    def f(self, x): pass",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_no_attack_is_a_right_answer(grader, name):
    grade = grade_then_honest(grader, WRONG[name])
    assert (grade.gt_correct, grade.passed, grade.exploited) == (False, False, False), grade
    assert grade.error is None or grade.error.isascii()


@pytest.mark.parametrize("name", ["sys.exit", "os._exit", "forged stdout", "forged descriptors", "always equal"])
@pytest.mark.parametrize("mode", ["run_tests", "sentinel", "stdout_marker", "file_marker"])
def test_no_escape_pays_in_any_mode(grader, name, mode):
    grade = grade_then_honest(grader, WRONG[name] + "\ndef run_tests(): raise ValueError", mode)
    assert (grade.passed, grade.hacked) == (False, False), grade


def refusal(statement):
    """A submission that answers the errno with which the kernel refuses `statement`, or "done"."""
    return f"""
import ctypes, os, resource, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0: raise OSError(ctypes.get_errno(), name)
class Solution:
    def f(self):
        try:
            {statement}
        except OSError as error:
            return error.errno
        return "done"
"""


HOST_FILE = str(Path(__file__).resolve())
REFUSED = {
    errno.EPERM: [
        "socket.socket()", "socket.socket(socket.AF_UNIX)", "os.fork()", "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), signal.SIGKILL)", "os.kill(-1, signal.SIGKILL)", "os.kill(1, 0)", "os.kill(0, 9)",
        "os.kill(os.getppid(), signal.SIGSTOP)", "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
        "os.sched_setaffinity(os.getppid(), [0])", "call('ptrace', 16, os.getppid(), 0, 0)",
        "call('unshare', 0x10000000)",
        "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)", "os.chmod('/tmp', 0o777)", "os.chmod('.', 0o777)",
        "os.memfd_create('x')", "os.mkfifo('pipe')", "os.utime('result.txt')", "os.chroot('.')",
        "call('shmget', 0, 4096, 0o1600)",
        "call('process_vm_readv', os.getppid(), None, 0, None, 0, 0)", "call('syscall', 250, 0, 0, 0, 0, 0)",
    ],
    errno.ENOSYS: ["os.pidfd_open(os.getppid())", "call('syscall', 425, 1, None)", "call('syscall', 9999)"],
    errno.EACCES: [
        f"open({HOST_FILE!r})", "open('/etc/passwd')", "open('/proc/self/mem')", "os.listdir('/proc')",
        "os.listdir('/')",
        "open('/tmp/grading-attack', 'w')", "open('new', 'w')", "os.mkdir('new')", "os.symlink('/etc/passwd', 'link')",
        "os.remove('result.txt')", "open('../other', 'w')", "os.rename('result.txt', 'x')",
    ],
    errno.EFBIG: ["open('result.txt', 'wb').write(bytes(2 << 20))"],
}  # fmt: skip


@pytest.mark.parametrize(("code", "statement"), [(code, text) for code, texts in REFUSED.items() for text in texts])
def test_the_kernel_refuses(grader, code, statement):
    """The attack runs, reports its own errno as its answer, and that answer must be the refusal."""
    problem = Problem(
        problem_id="refusal", env="test", messages=(), func_name="f", starter="", setup_code="", canonical="",
        cases=(Case(args=(), expected=int(code)),),
    )  # fmt: skip
    grade = grade_then_honest(grader, refusal(statement), problem=problem)
    assert grade.gt_correct, f"{statement} was not refused with {errno.errorcode[code]}: {grade}"
    assert not Path("/tmp/grading-attack").exists()


def test_a_submission_keeps_one_descriptor_and_a_clean_environment(grader):
    """Only 0, 1, 2 and the answer pipe are open, stdin is empty, and the environment is the worker's own."""
    source = """
import os
class Solution:
    def f(self, what):
        if what == "open":
            found = []
            for fd in range(1024):
                try: os.fstat(fd)
                except OSError: continue
                found.append(fd)
            return len(found)
        if what == "stdin": return os.read(0, 10)
        return dict(os.environ)
"""
    cases = (("open", 4), ("stdin", b""), ("environment", ENVIRONMENT))
    problem = Problem(
        problem_id="descriptors", env="test", messages=(), func_name="f", starter="", setup_code="", canonical="",
        cases=tuple(Case(args=(what,), expected=expected) for what, expected in cases),
    )  # fmt: skip
    assert grade_then_honest(grader, source, problem=problem).num_tests_passed == 3


def test_threads_are_allowed(grader):
    """clone3 is hidden and clone with CLONE_THREAD is not: a solution may use threads."""
    source = """
from concurrent.futures import ThreadPoolExecutor
class Solution:
    def f(self, x):
        with ThreadPoolExecutor(4) as pool: return list(pool.map(lambda y: y, [x]))[0]
"""
    assert grade_then_honest(grader, source).gt_correct


def test_the_marker_must_be_in_the_own_directory_and_before_the_end(grader):
    """A thread that outlives the submission, an absolute path and a print after the cap pay nothing."""
    late = "import threading\ndef late():\n    import time; time.sleep(1)\n    open('result.txt', 'w').write('PASS')\n"
    late += "threading.Thread(target=late, daemon=True).start()\nclass Solution:\n    def f(self, x): pass"
    assert not grade_then_honest(grader, late, "file_marker").passed
    flood = "print('x' * 99999)\nprint('all tests passed')\nclass Solution:\n    def f(self, x): pass"
    assert not grade_then_honest(grader, flood, "stdout_marker").passed


DAEMON = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("result.txt", "w").write(str(os.getpid()))
        os.closerange(0, 1024)
        time.sleep(60)
    os._exit(0)
while not os.path.getsize("result.txt"): time.sleep(0.01)
class Solution:
    def f(self, x): return x
"""


def test_without_isolation_the_tree_is_killed_before_the_channel_is_read(tmp_path):
    """A daemon that left session, group and pipes is an orphan of the worker: found by its pid, it is dead."""
    worker = Worker(tier="unsafe-local", uid=None, directory=tmp_path, timeout_s=5.0)
    try:
        code = Code(setup="", source=DAEMON, func_name="f", inputs=((1,),))
        outcome = worker.execute(code, Run(action="drive", read_file=True))
    finally:
        worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(outcome.file), 0)
    assert not list(tmp_path.iterdir()), "the directory of an execution outlives it"


def test_unsafe_local_is_asked_for_and_recorded(monkeypatch):
    monkeypatch.setattr(sandbox, "missing_for_tier_b", lambda: ["Landlock"])
    with pytest.raises(InputError, match=r"no Landlock; .*--unsafe-local"):
        Grader()
    with Grader(workers=1, unsafe_local=True, timeout_s=5.0) as grader:
        grade = grade_then_honest(grader, WRONG["fork bomb"])
        assert (grade.isolation, grade.gt_correct) == ("unsafe-local", False)


def test_no_worker_outlives_its_grader():
    """Leaving the context ends the worker and removes the directory, also after bad input."""
    with Grader(workers=1) as grader:
        with pytest.raises(InputError):
            grader.grade([HONEST, Submission(problem=ECHO, completion="", mode="no such mode")])
        uid, worker = grader._idle.get()
        grader._idle.put((uid, worker))
        assert worker is not None, "bad input of one submission cost a worker"
        assert grader._directory.exists()
    assert not grader._directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(worker._process.pid, 0)


def run_filter(program, number, arguments, arch):
    """The obvious BPF interpreter, for the instructions that the filter uses."""
    words = {0: number, 4: arch} | {16 + 8 * i: value for i, value in enumerate(arguments)}
    accumulator, counter = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * counter)
        counter += 1
        if code == 0x06:
            return value
        if code == 0x20:
            accumulator = words[value]
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            counter += if_true if holds else if_false


@pytest.mark.parametrize(("machine", "column", "arch"), [("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)])
def test_the_filter_decides_every_call_as_the_tables_say(machine, column, arch):
    """All call numbers of both architectures against the tables, by an interpreter."""
    program, pid = seccomp.build_filter(4242, machine), 4242
    allow, refuse, absent = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

    def decide(number, *arguments):
        return run_filter(program, number, (*arguments, 0, 0, 0)[:3], arch)

    refused = {numbers[column] for numbers in seccomp._REFUSED.values()}
    own = {numbers[column]: name for name, numbers in seccomp._SELF_ONLY.items()}
    for number in range(424):
        if number in own:
            assert decide(number, pid) == allow
            assert decide(number, 1) == decide(number, 2**32 - 1) == refuse
            assert decide(number, 0) == (allow if own[number] == "prlimit64" else refuse)
        elif number == seccomp._CLONE[column]:
            assert decide(number, 0x3D0F00) == allow, "threads are refused"
            assert decide(number, 17) == refuse, "processes are allowed"
        else:
            assert decide(number) == (refuse if number in refused else allow), f"call {number}"
    for numbers, commands in seccomp._OWNER_COMMANDS.items():
        assert {decide(numbers[column], 3, command) for command in commands} == {refuse}
    assert {decide(number) for number in (424, 425, 435, 9999, 0x40000000, 2**32 - 1)} == {absent}
    assert run_filter(program, 0, (0, 0, 0), arch + 1) == 0x80000000, "a foreign architecture is not killed"
