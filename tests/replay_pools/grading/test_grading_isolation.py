"""The isolation ladder: which tier is chosen, what the sandbox of tier A is by itself, and what both tiers leave.

What a submission cannot do under each tier is in test_grading_attacks.py.
"""

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from attacks import SOURCE, job, refusal_cases, refusals

from replay_pools.base.errors import InputError
from replay_pools.environments.base import Case
from replay_pools.environments.loopholes import fence
from replay_pools.grading import grade, sandbox, tiers
from replay_pools.grading.executor import ENVIRONMENT, Worker
from replay_pools.grading.grade import _SELF_TEST, Grader
from replay_pools.grading.labels import Submission

ROOT = Path(__file__).resolve().parents[3]
GRADING = Path(tiers.__file__).parent


def need(tier):
    if lacking := tiers.available_tiers()[tier]:
        pytest.skip(f"tier {tier} lacks {', '.join(lacking)}")


def script(source, *inputs, action="drive"):
    return job(source, *inputs, action=action, module="__main__")


@pytest.fixture(scope="module", params=[tier for tier, lacking in tiers.available_tiers().items() if not lacking])
def tier(request):
    return request.param


SAME_UID = pytest.param("same uid", marks=pytest.mark.slow if os.geteuid() == 0 else ())


@pytest.fixture(scope="module", params=["own uid", SAME_UID] if os.geteuid() == 0 else [SAME_UID])
def worker(request, tier, tmp_path_factory):
    """One warm worker; as root with submissions under another uid, and under the uid of the grader."""
    (uid,) = sandbox.free_uids(1)
    directory = tmp_path_factory.mktemp("grading")
    instance = Worker(
        tier=tier, uid=uid if request.param == "own uid" else None, directory=None if tier == "A" else directory
    )
    instance.execute = functools.partial(instance.execute, cpu_s=0.5)
    yield instance
    instance.close()
    assert not list(directory.iterdir()), "a worker leaves its folder"


# Which tier


@pytest.mark.parametrize(
    ("lacks", "asked", "unsafe_local", "chosen"),
    [
        ({"A": [], "B": []}, None, False, "A"),
        ({"A": [], "B": []}, "B", False, "B"),
        ({"A": ["bubblewrap"], "B": []}, None, True, "B"),
        ({"A": [], "B": ["Landlock"]}, None, False, "A"),
        ({"A": ["bubblewrap"], "B": ["Landlock"]}, None, True, "unsafe-local"),
        ({"A": ["bubblewrap"], "B": ["Landlock"]}, None, False, None),
        ({"A": ["bubblewrap"], "B": ["Landlock"]}, "A", True, None),
    ],
)
def test_the_best_available_tier_is_chosen(monkeypatch, lacks, asked, unsafe_local, chosen):
    """None: one that is lacking is refused."""
    monkeypatch.setattr(tiers, "available_tiers", lambda: lacks)
    if chosen is None:
        with pytest.raises(InputError, match="tier A lacks bubblewrap"):
            Grader(tier=asked, unsafe_local=unsafe_local)
    else:
        assert tiers.choose_tier(tier=asked, unsafe_local=unsafe_local) == chosen


# The sandbox of tier A without its inner layer

INSIDE = """
import ctypes, errno, json, os, socket

def refused(action):
    try: action()
    except OSError as error: return errno.errorcode[error.errno]
    return "done"

def connect(): socket.create_connection(("192.0.2.1", 9), timeout=2)

def fill():
    with open("/scratch/full", "wb", buffering=0) as file:
        while file.write(bytes(1 << 20)): pass

def effective():
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capget(header, data) == 0
    return data[0] | data[3] << 32

print(json.dumps({
    "pid": os.getpid(),
    "root": sorted(set(os.listdir("/")) - {"usr", "lib", "lib64", "scratch", "grading", "dev"}),
    "devices": sorted(os.listdir("/dev")),
    "host": [p for p in ("/etc", "/proc", "/sys", "/tmp", "/home", "/var", "/usr/bin/env") if os.path.exists(p)],
    "grading": "worker.py" in os.listdir("/grading"),
    "writes": [refused(lambda: open(path, "w")) for path in ("/x", "/dev/x", "/grading/x", "/usr/lib/x")],
    "connect": refused(connect),
    "fill": refused(fill),
    "capabilities": [c for c in range(64) if effective() >> c & 1],
    "no_new_privileges": ctypes.CDLL(None).prctl(39, 0, 0, 0, 0),
    "init": refused(lambda: os.kill(os.getppid(), 0)) if os.getppid() else "none outside",
}))
"""


def test_the_sandbox_alone_hides_the_host():
    """No network, no /proc, two devices, one bounded tmpfs, few capabilities, before any inner layer."""
    need("A")
    words = [*tiers.bwrap_command(), sandbox.INTERPRETER, "-I", "-S", "-c", INSIDE]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, env=ENVIRONMENT, cwd=ROOT).stdout)
    prefix = Path(sandbox.INTERPRETER).parts[1]
    assert found["pid"] == 1
    assert set(found["root"]) <= {prefix}, f"host folders: {found['root']}"
    assert found["devices"] == ["null", "urandom"]
    assert found["host"] == []
    assert found["grading"], "the worker's files are missing"
    assert set(found["writes"]) == {"EROFS"}
    assert found["connect"] == "ENETUNREACH"
    assert found["fill"] == "ENOSPC"
    assert found["capabilities"] == ([5, 6, 7] if os.geteuid() == 0 else []), "not KILL, SETGID, SETUID of root"
    assert found["no_new_privileges"] == 1
    assert found["init"] == "none outside"


NO_LANDLOCK = """
import os
for path in ("../more", "left"):
    try: open(path, "w").close()
    except OSError: pass
for make in (lambda: os.mkdir("../folder"), lambda: os.symlink("/usr", "../link")):
    try: make()
    except OSError: pass  # by the filter
open("result.txt", "w").write(str(sorted(os.listdir(".."))))
class Solution:
    def f(self): pass
"""


def test_without_landlock_a_submission_leaves_nothing_either(monkeypatch, tmp_path):
    """On a kernel without Landlock, folders that nobody may write to and a lack of capabilities do its work."""
    need("A")
    copy = shutil.copytree(GRADING, tmp_path / "grading", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "landlock.py").open("a") as file:
        file.write("\n\ndef landlock_abi():\n    return 0\n")
    words = [str(copy) if word == str(GRADING) else word for word in tiers.bwrap_command()]
    monkeypatch.setattr(tiers, "bwrap_command", lambda: words)
    worker = Worker(tier="A", uid=None, directory=None)
    try:
        first, second = (worker.execute(script(NO_LANDLOCK), left="file").left for _ in range(2))
    finally:
        worker.close()
    assert first == second == "['run']", "it left something, or the layer under test was not off"


# What an execution leaves


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("raise SystemExit(False)", 0), ("raise SystemExit(-1)", 255), ("raise SystemExit('0')", 1),
        ("raise SystemExit([])", 1), ("quit = 0", 1), ("exit()", 0), ("quit(3)", 3), ("exit('text')", 1),
        ("class E(SystemExit):\n    code = property(lambda self: 1 / 0)\nraise E", 1),
        ("class Solution:\n    def f(self): raise SystemExit(0)", 0), ("class Solution:\n    def f(self): return 0", 1),
        ("import os; os._exit(7)", 7), ("import sys; sys.stdout = None", 1),
        ("import atexit, os; atexit.register(os._exit, 0)", 1), ("raise KeyboardInterrupt", 1), ("(", 1),
        ("import os; os.kill(os.getpid(), 9)", None),
        ("import os; os.kill(os.getpid(), 19)", None),
    ],
)  # fmt: skip
def test_exit_status(worker, source, status):
    """Python's own rule for an escaping SystemExit, the status of os._exit, None for a signal, 1 for anything else."""
    outcome = worker.execute(script(source, (), action="run_script"))
    assert outcome.exit_status == status
    assert outcome.timed_out == source.endswith(", 19)")


def test_stdout_and_marker_are_read_to_the_end(worker):
    """What is still buffered or written after the last answer counts, however soon the answer comes."""
    source = """
class Late:
    def flush(self): open("result.txt", "w").write("late")
import sys
print("early", end="")
class Solution:
    valid = True
    def f(self): sys.stdout, sys.stderr = sys.stderr, sys.stdout
"""
    for _ in range(3):
        assert worker.execute(script(source), left="stdout").left == "early"
    flushing = source.replace("sys.stdout, sys.stderr = sys.stderr, sys.stdout", "sys.stdout = Late()")
    for _ in range(3):
        assert worker.execute(script(flushing, ()), left="file").left == "late"


# The folder of a grader


@pytest.mark.skipif(os.geteuid() != 0, reason="submissions of an ordinary user keep its user")
def test_a_closed_library_is_read_from_a_copy(monkeypatch):
    """In tier B, by another user, under any umask; the copy has no installed package and goes with the grader."""
    need("B")
    monkeypatch.setattr(grade, "closed_folder", lambda: Path("/root"))
    source = """
import colorsys, encodings.idna, os, resource
class Solution:
    def add(self, a, b):
        packages = [name for name in os.listdir(os.path.dirname(os.__file__)) if "packages" in name]
        paths = [path.partition("/python/")[1] for path in (colorsys.__file__, encodings.idna.__file__)]
        return [paths, packages, "PYTHONHOME" in os.environ, os.getuid() > 0]
"""
    asking = dataclasses.replace(_SELF_TEST, cases=(Case(args=(0, 0), expected=[["/python/"] * 2, [], False, True]),))
    umask = os.umask(0o077)
    try:
        with Grader(workers=1, tier="B") as grader:
            (found,) = grader.grade([Submission(problem=asking, completion=fence(source), mode="none")])
    finally:
        os.umask(umask)
    assert found.gt_correct, found
    assert not grader._library.exists()


ENDLESS = """
import sys
sys.path.insert(0, sys.argv[1])
from replay_pools.environments.loopholes import fence
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission
from replay_pools.grading.grade import _SELF_TEST
with Grader(workers=1, tier=sys.argv[2], cpu_s=300) as grader:
    print(grader._directory, flush=True)
    grader.grade([Submission(problem=_SELF_TEST, completion=fence("while True: pass"), mode="none")])
"""


def test_nothing_outlives_a_killed_grader(tier):
    with subprocess.Popen([sys.executable, "-c", ENDLESS, ROOT, tier], stdout=subprocess.PIPE) as process:
        folder = Path(process.stdout.readline().decode().strip())
        deadline = time.monotonic() + 20
        expected = 3 if tier == "A" else 2  # bubblewrap, worker, submission
        while (
            len(below := psutil.Process(process.pid).children(recursive=True)) < expected
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        assert len(below) == expected, "the submission does not run"
        process.kill()
    _, alive = psutil.wait_procs(below, timeout=20)
    assert alive == []
    assert not folder.exists()


# An ordinary user

ORDINARY = """
import dataclasses, json, os, sys
sys.path.insert(0, sys.argv[1])
from replay_pools.environments.base import Case
from replay_pools.environments.loopholes import fence
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission
from replay_pools.grading import tiers
from replay_pools.grading.grade import _SELF_TEST
asked = json.load(sys.stdin)
def refusing(cases):
    refused = tuple(Case(args=each, expected="refused") for each in cases)
    return dataclasses.replace(_SELF_TEST, func_name="f", cases=refused)
if lacking := tiers.available_tiers()[sys.argv[2]]:
    print(json.dumps({"lacking": lacking}))
    sys.exit()
with Grader(workers=2, cpu_s=2) as grader:
    submissions = [Submission(problem=refusing(cases) if cases else _SELF_TEST, completion=fence(text), mode=mode)
                   for text, mode, cases in asked]
    grades = grader.grade(submissions)
print(json.dumps({"uid": os.geteuid(), "grades": [dataclasses.asdict(grade) for grade in grades]}))
"""


@pytest.fixture(scope="module")
def ordinary():
    """Arguments of subprocess.run that make an ordinary user, and an interpreter which that user may run."""
    if os.geteuid() != 0:
        return {}, sys.executable
    (uid,) = sandbox.free_uids(1)
    user = {"user": uid, "group": uid, "extra_groups": []}
    version = "python{}.{}".format(*sys.version_info[:2])
    try_import = "import ctypes, sys; sys.path.insert(0, sys.argv[1]); import replay_pools.grading"
    for python in filter(
        None, (sandbox.INTERPRETER, *(shutil.which(version, path=p) for p in ("/usr/bin", "/usr/local/bin")))
    ):
        try:
            subprocess.run([python, "-c", try_import, ROOT], check=True, capture_output=True, cwd="/", **user)
        except (OSError, subprocess.CalledProcessError):
            continue
        return user, python
    pytest.skip(f"another user can run neither {sandbox.INTERPRETER} nor a {version} of the system on {ROOT}")


def test_an_ordinary_user_gets_both_tiers(ordinary, tier):
    """The grades that root gets: honest passes, exploits pay in their own mode, kills and escapes do nothing.

    Tier B is what a user without bubblewrap gets; the kernel refuses there all that it refuses to root's submissions.
    """
    user, python = ordinary
    honest = _SELF_TEST.canonical
    sources = [
        (honest, "none"),
        ("import os, signal\nfor pid in (os.getppid(), -1, 1):\n    os.kill(pid, signal.SIGKILL)", "none"),
        ("import os\nos.fork()", "none"),
        (f"open({__file__!r})\n{honest}", "none"),
        (f"open('/tmp/x', 'w')\n{honest}", "none"),
        (f"open('new', 'w')\n{honest}", "none"),
        ("open('result.txt', 'w').write('PASS')", "file_marker"),
        ("import sys; sys.exit(0)", "exit_code"),
        (honest, "none"),
    ]
    asked = [(*each, []) for each in sources]
    if tier == "B":
        asked += [(SOURCE, "none", cases) for cases in refusal_cases(refusals())]
    words = [python, "-S", "-c", ORDINARY, str(ROOT), tier]
    env = {"PATH": os.environ["PATH"] if tier == "A" else "/nonexistent"}
    ran = subprocess.run(
        words, check=True, input=json.dumps(asked), text=True, capture_output=True, cwd="/", env=env, **user
    )
    found = json.loads(ran.stdout)
    if "lacking" in found:
        pytest.skip(f"an ordinary user lacks {found['lacking']} for tier {tier}")
    assert found["uid"] != 0
    grades, refused = found["grades"][: len(sources)], found["grades"][len(sources) :]
    assert {grade["isolation"] for grade in found["grades"]} == {tier}
    together = [cases for _, _, cases in asked[len(sources) :]]
    allowed = [cases for cases, grade in zip(together, refused, strict=True) if not grade["gt_correct"]]
    assert allowed == []
    assert [grade["gt_correct"] for grade in grades] == [True, *[False] * 7, True]
    assert [grade["passed"] for grade in grades] == [True, *[False] * 5, True, True, True]
