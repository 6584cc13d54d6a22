"""The attack corpus (attacks.toml) under every isolation; each attack is followed at once by an honest grade.

Tier B runs twice as root: with submissions under a uid of their own, and under the grader's own uid, which is what an
ordinary user has (and, being root, is the stronger attacker).
"""

import contextlib
import errno
import itertools
import os
import re
import struct
import sysconfig
from dataclasses import replace
from pathlib import Path

import honest
import pytest
from attacks import CORPUS, SOURCE, job, problem, refusal_cases, refusals

from replay_pools.base.errors import InputError
from replay_pools.environments.loopholes import LOOPHOLES, fence
from replay_pools.grading import sandbox, seccomp, tiers
from replay_pools.grading.executor import ENVIRONMENT, Worker
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission

CASES = CORPUS["case"]
FIELDS = {"name", "family", "tries", "code", "uses", "expected", "pays", "problem", "hangs", "costly"}
RESISTED = [case for case in CASES if case.get("expected") != "right"]
HONEST_CASES = [case for case in CASES if case.get("expected") == "right"]
FAMILIES = ("exit", "equality", "harness", "channel", "system")
ISOLATIONS = ("A", "B, own uid", "B, same uid")
# The one isolation of tier B that every machine has; the other of tier B is slow.
THOROUGH = "B, own uid" if os.geteuid() == 0 else "B, same uid"
QUICK_S, PATIENT_S = 0.25, 20  # limit of CPU seconds of cases that hang and of cases that end
QUICK = "quick"  # environment of the problems whose submissions hang
BURNING = ("thread bomb", "uninterruptible C code", "busy and deaf", "growing memory bomb")
BOMB_S = 0.5  # of bombs, one of which hangs


PROBLEMS = {
    "echo": problem("echo", [((value,), value) for value in (1, [1, 2], "a", 0.5, {"k": [True]})]),
    "sets": problem("sets", [((value,), value) for value in ({1, 2}, {("a", 1): frozenset({2})}, 10**9 + 7)]),
    "kinds": problem("kinds", [((value,), value) for value in ({"a": 1}, [1, 2], (1, 2))]),
    "secret": problem("secret", [((i,), f"secret-{os.urandom(16).hex()}") for i in range(2)]),
}


def submission(source, mode="none", of="echo", env="test"):
    return Submission(problem=replace(PROBLEMS[of], env=env), completion=fence(source), mode=mode)


HONEST = submission(PROBLEMS["echo"].canonical)


def lacking(isolation):
    """Why this machine cannot grade under this isolation, or nothing."""
    tier, _, uid = isolation.partition(", ")
    if missing := tiers.available_tiers()[tier]:
        return f"tier {tier} lacks {', '.join(missing)}"
    return "only root can give submissions a uid of their own" if uid == "own uid" and os.geteuid() != 0 else ""


AVAILABLE = [isolation for isolation in ISOLATIONS if not lacking(isolation)]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_every_isolation_is_attacked(isolation):
    """The one skip of an isolation that this machine lacks; nothing below is collected for it."""
    if isolation not in AVAILABLE:
        pytest.skip(lacking(isolation))


@pytest.fixture(scope="module")
def opened():
    """A function from an isolation to its grader, which is opened once.

    One worker, so that the honest grade follows on the process that was attacked.
    """
    graders = {}
    with contextlib.ExitStack() as stack:

        def grader_of(isolation):
            if isolation not in graders:
                with pytest.MonkeyPatch.context() as patch:
                    if isolation == "B, same uid":
                        patch.setattr(sandbox, "free_uids", lambda count: [None] * count)
                    graders[isolation] = stack.enter_context(Grader(workers=1, tier=isolation[0], cpu_s=PATIENT_S))
                graders[isolation].limits = {(QUICK, name): QUICK_S for name in PROBLEMS}
            return graders[isolation]

        yield grader_of


@pytest.fixture(params=[pytest.param(i, marks=() if i in ("A", THOROUGH) else pytest.mark.slow) for i in AVAILABLE])
def isolation(request):
    return request.param


# How honest programs begin is tried in tier A by test_grading_limits.py.
IN_B = pytest.mark.parametrize(
    "isolation", [pytest.param(i, marks=() if i == THOROUGH else pytest.mark.slow) for i in AVAILABLE], indirect=True
)


@pytest.fixture
def grader(opened, isolation):
    return opened(isolation)


def source_of(case):
    """Code of a case after its helper; a case without a run_tests of its own gets one that fails."""
    source = CORPUS["helpers"].get(case.get("uses"), "") + case["code"]
    return source if "run_tests" in case["code"] else f"{source}\ndef run_tests(): raise ValueError\n"


def grade_then_honest(grader, attacks, names=None):
    """The grades of attacks, after checking that the honest grade right after each is right."""
    grades = grader.grade([each for attack in attacks for each in (attack, HONEST)])
    for i, (attack, following) in enumerate(zip(attacks, grades[1::2], strict=True)):
        what = "the attack" if names is None else names[i]
        assert following.gt_correct, f"mode {attack.mode}: {what} broke the next grade: {following}"
    return grades[::2]


def modes_of(case, *, all_modes=False):
    """One mode by turns and those that it pays in, or all; what hangs: none."""
    if "hangs" in case:
        return ["none"]
    modes = list(LOOPHOLES)
    if all_modes and "costly" not in case:
        return modes
    return sorted({modes[CASES.index(case) % len(modes)], *case.get("pays", ())})


def test_the_corpus_is_well_formed():
    """Names are unique; families, modes, helpers and problems exist; every mode is attacked."""
    assert len({case["name"] for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.keys() <= FIELDS, case
        assert case["family"] in FAMILIES, case
        assert case.get("expected", "wrong") in ("wrong", "right", "uncompiled"), case
        assert set(case.get("pays", ())) <= set(LOOPHOLES) - {"none"}, case
        assert case.get("problem", "echo") in PROBLEMS, case
        assert case.get("uses", "any") in CORPUS["helpers"], case
    assert {refusal["expected"] for refusal in CORPUS["refusals"]} <= set(errno.errorcode.values())


def breach(case, mode, grade):
    """What is wrong with the grade of an attack, or nothing."""
    if grade.gt_correct:
        return "BREACH: counted as right"
    if grade.compiles is not (case.get("expected") != "uncompiled"):
        return "compiles"
    if grade.error is not None and not (grade.error.isascii() and grade.error.isprintable()):
        return "the error cannot be printed"
    if grade.passed is not grade.exploited:
        return "passed without an exploit"
    if case.get("uses") == "steal" and grade.error not in ("held", "forged line on the answer pipe"):
        return "does not hold the answer pipe"
    pays = mode in case.get("pays", ())
    expected = (True, True, mode) if pays else (False, False, "none")
    found = grade.passed, grade.hacked, grade.mechanism
    return "" if found == expected else "does not pay" if pays else "BREACH: pays"


def attacked(isolation, family, all_modes=False):
    """Slow, unless the isolation is the thorough one, or tier A, whose sandbox is another, and attacks the sandbox."""
    fast = not all_modes and (isolation == THOROUGH or (isolation == "A" and family == "system"))
    return pytest.param(isolation, family, all_modes, marks=() if fast else pytest.mark.slow)


@pytest.mark.parametrize(
    ("isolation", "family", "all_modes"),
    [
        *(attacked(isolation, family) for isolation in AVAILABLE for family in FAMILIES),
        attacked(THOROUGH, "channel", True),
        *(attacked(isolation, "system", True) for isolation in AVAILABLE if isolation == "A"),
    ],
)
def test_no_attack_is_a_right_answer(opened, isolation, family, all_modes):
    """gt_correct never; passed, hacked and exploited in no mode whose exploit the case does not contain."""
    cases = [case for case in RESISTED if case["family"] == family]
    if isolation == "A" != THOROUGH and not all_modes:
        # What burns CPU time or memory until it is stopped is stopped by the same limit in both tiers: one is enough.
        cases = [case for case in cases if case["name"] not in BURNING]
    asked = [(case, mode) for case in cases for mode in modes_of(case, all_modes=all_modes)]
    attacks = [
        submission(source_of(case), mode, case.get("problem", "echo"), QUICK if "hangs" in case else "test")
        for case, mode in asked
    ]
    grades = grade_then_honest(opened(isolation), attacks, [case["name"] for case, _ in asked])
    found = [(case, mode, grade) for (case, mode), grade in zip(asked, grades, strict=True)]
    wrong = [
        f"{case['name']} ({case['tries']}), mode {m}: {why}: {g}" for case, m, g in found if (why := breach(case, m, g))
    ]
    assert not wrong, "\n".join(wrong)


HUNTS = [case for case in CASES if case.get("uses") == "hunt" and "/proc" not in case["name"]]


def test_the_hunts_find_what_is_there(grader):
    """The same searches find a secret that the process does hold, its argument; every problem can be solved."""
    for name in PROBLEMS.keys() - {"secret"}:
        (grade,) = grader.grade([submission(PROBLEMS[name].canonical, of=name)])
        assert grade.gt_correct, f"{name}: {grade}"
    secret = f"secret-{os.urandom(16).hex()}"
    given = problem("given", [((secret,), secret)])
    attacks = [Submission(problem=given, completion=fence(source_of(case)), mode="none") for case in HUNTS]
    for case, grade in zip(HUNTS, grade_then_honest(grader, attacks), strict=True):
        assert grade.gt_correct, f"the attack {case['name']} is a dud: {grade}"


@IN_B
def test_what_is_honest_stays_right(grader):
    """Right and unhacked in every mode: the isolation forbids nothing that a solution needs."""
    asked = [(case, mode) for case in HONEST_CASES for mode in {*modes_of(case), "exit_code"}]
    attacks = [submission(source_of(case), mode, case.get("problem", "echo")) for case, mode in asked]
    for (case, mode), grade in zip(asked, grade_then_honest(grader, attacks), strict=True):
        found = (grade.gt_correct, grade.passed, grade.hacked)
        assert case.get("uses") != "steal" or grade.error == "held", case["name"]
        assert found == (True, True, False), f"{case['name']}, mode {mode}: {grade}"


@IN_B
def test_nothing_honest_is_refused(grader):
    """Every module of the library that can be imported outside, and all that is done with them."""
    modules = honest.library_modules()
    assert len(modules) > 160
    assert honest.refused(grader.grade, honest.problems(modules)) == {}


def grade_refusals(grader, together):
    """A grade for each list of refusals: right if all are refused, and then an honest grade itself."""
    problems = [problem("refusals", [(each, "refused") for each in asked]) for asked in together]
    return grader.grade([Submission(problem=each, completion=fence(SOURCE), mode="none") for each in problems])


def test_the_kernel_refuses(grader, isolation):
    """Each attack runs and answers whether its errno is the one that a refusal has; root, who has not become another
    user, may do what is marked `own_uid`, and a raw call number is one of its machine.
    """
    may = isolation == "B, same uid" and os.geteuid() == 0
    rows = [row for row in refusals() if not (may and row.get("own_uid"))]
    assert len(rows) > 160
    # Python's library may be read, and no package beside it: one of them may be ours, with every solution in it.
    stdlib = Path(sysconfig.get_path("stdlib"))
    foreign = (path for name in sandbox.FOREIGN for path in (stdlib / name).glob("**/*.py"))
    rows[:0] = [{"expected": "EACCES", "statement": f"open({str(path)!r})"} for path in itertools.islice(foreign, 1)]
    together = refusal_cases(rows)
    for asked, grade in zip(together, grade_refusals(grader, together), strict=True):
        if not grade.gt_correct:
            alone = [[one] for one in asked]
            allowed = [
                one for one, found in zip(asked, grade_refusals(grader, alone), strict=True) if not found.gt_correct
            ]
            raise AssertionError(f"not refused: {allowed or asked}: {grade}")
    assert not Path("/tmp/grading-attack").exists()


def test_a_submission_keeps_one_descriptor_and_a_clean_environment(grader):
    """Open are 0, 1, 2 and the answer pipe; stdin is empty, the environment clean."""
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
    asking = problem("descriptors", [(("open",), 4), (("stdin",), b""), (("environment",), ENVIRONMENT)])
    (grade,) = grade_then_honest(grader, [Submission(problem=asking, completion=fence(source), mode="none")])
    assert grade.num_tests_passed == 3, grade


BOMBS = ("fork bomb", "thread bomb", "growing memory bomb", "memory bomb by pipes", "double-forked daemon", "disk fill",
         "signals to everybody", "threads that outlive", "a flood of duplicates")  # fmt: skip


def test_parallel_grading_under_bombs_changes_no_label():
    """Bombs and daemons between honest and wrong submissions, on three workers: the grades of each alone, in order."""
    bombs = [submission(source_of(case)) for case in CASES if case["name"] in BOMBS]
    assert len(bombs) == len(BOMBS), "a bomb was renamed"
    wrong = submission("class Solution:\n    def f(self, x): return 7", "sentinel")
    hack = submission("class Solution:\n    valid = True\n    def f(self, x): return 7", "sentinel")
    with Grader(workers=1, cpu_s=BOMB_S) as one:
        (honest_alone, wrong_alone, hack_alone) = (one.grade([each])[0] for each in (HONEST, wrong, hack))
        bombs_alone = [one.grade([bomb])[0] for bomb in bombs]
    assert [g.gt_correct for g in (honest_alone, wrong_alone, hack_alone)] == [True, False, False]
    assert [g.exploited for g in (honest_alone, wrong_alone, hack_alone)] == [False, False, True]
    batch = [each for bomb in bombs for each in (HONEST, bomb, wrong, hack)]
    alone = [each for bomb in bombs_alone for each in (honest_alone, bomb, wrong_alone, hack_alone)]
    with Grader(workers=3, cpu_s=BOMB_S) as three:
        grades = three.grade(batch)
    # Which of two errors a bomb meets first is a matter of timing.
    found, expected = ([replace(grade, error=None) for grade in rows] for rows in (grades, alone))
    assert found == expected, "a neighbour's bomb changed a label"


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
    worker = Worker(tier="unsafe-local", uid=None, directory=tmp_path)
    try:
        outcome = worker.execute(job(DAEMON, (1,), action="drive"), left="file")
    finally:
        worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(outcome.left), 0)
    assert not list(tmp_path.iterdir()), "the directory of an execution outlives it"


def test_no_worker_outlives_its_grader():
    """Leaving the context ends the worker and removes the directory, also after bad input."""
    with Grader(workers=1) as grader:
        with pytest.raises(InputError):
            grader.grade([HONEST, submission("", "no such mode")])
        uid, worker = grader._idle.get()
        grader._idle.put((uid, worker))
        assert worker is not None, "bad input of one submission cost a worker"
        left = grader._directory
    assert left is None or not left.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(worker._process.pid, 0)


def run_filter(program, number, arguments, arch):
    words = {0: number, 4: arch}
    for i, value in enumerate(arguments):
        words |= {16 + 8 * i: value & 0xFFFFFFFF, 20 + 8 * i: value >> 32}
    accumulator, counter = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * counter)
        counter += 1
        if code == 0x06:
            return value
        if code == 0x20:
            accumulator = words[value]
        elif code == 0x54:
            accumulator &= value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value}[code]
            counter += if_true if holds else if_false


ARCHITECTURES = [("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)]


@pytest.mark.parametrize(("machine", "column", "arch"), ARCHITECTURES)
def test_the_filter_decides_every_call_as_the_tables_say(machine, column, arch):
    """All call numbers of both architectures against the tables, by an interpreter."""
    program, pid = seccomp.build_filter(4242, machine), 4242
    allow, refuse, absent = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

    def decide(number, *arguments):
        return run_filter(program, number, (*arguments, *[0] * 6)[:6], arch)

    permitted = {numbers[column] for numbers in seccomp._PERMITTED.values()}
    conditional = {numbers[column] for numbers, _ in seccomp._CONDITIONAL.values()}
    assert not permitted & conditional
    for number in set(range(424)) - conditional:
        assert decide(number) == (allow if number in permitted else refuse), f"call {number}"

    def decide_named(name, *arguments):
        return decide(seccomp._CONDITIONAL[name][0][column], *arguments) == allow

    for name in ("kill", "tkill", "tgkill"):
        assert [decide_named(name, of) for of in (pid, 1, 0, 2**32 - 1)] == [True, False, False, False]
    assert [decide_named("prlimit64", of) for of in (pid, 0, 1)] == [True, True, False]
    assert [decide_named("clone", flags) for flags in (0x3D0F00, 0x7D0F00)] == [True, True], "threads are refused"
    assert not any(decide_named("clone", flags) for flags in (17, 0, 0x10000, 0x3D0F00 | 0x20000, 0x10000011))
    assert [c for c in range(2048) if decide_named("fcntl", 3, c)] == [0, 1, 2, 3, 1030]
    assert [c for c in range(0x5400, 0x5460) if decide_named("ioctl", 0, c)] == [
        0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451,
    ]  # fmt: skip
    assert [option for option in range(100) if decide_named("prctl", option)] == [15, 16]
    assert [a for a in range(128) if decide_named("madvise", 0, 4096, a)] == [0, 1, 2, 3, 4, 8, 14, 15, 16, 17]
    pairs = [(family, kind) for family in range(4) for kind in range(8) if decide_named("socketpair", family, kind)]
    assert pairs == [(1, 1)]
    assert decide_named("socketpair", 1, 1 | 0o2000000 | 0o4000)
    assert decide_named("sendto", 3, 4096, 1, 0, 0, 0)
    assert not any(decide_named("sendto", 3, 4096, 1, 0, address) for address in (1, 4096, 1 << 32, (1 << 40) + 8))

    assert {decide(number) for number in (424, 425, 435, 9999, 0x40000000, 2**32 - 1)} == {absent}
    assert run_filter(program, 0, [0] * 6, arch + 1) == 0x80000000, "a foreign architecture is not killed"


HEADERS = {
    "x86_64": ("asm/unistd_64.h", "x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": ("asm-generic/unistd.h",),  # aarch64 uses the generic numbers
}


@pytest.mark.parametrize(("machine", "column", "arch"), ARCHITECTURES)
def test_the_numbers_are_those_of_the_kernel_headers(machine, column, arch):
    """Name by name, where this machine has the headers; what has no number there is absent from them."""
    headers = [Path("/usr/include", name) for name in HEADERS[machine]]
    header = next((path for path in headers if path.is_file()), None)
    if header is None:
        pytest.skip(f"no kernel headers for {machine}")
    numbers = {}
    for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s", header.read_text()):
        numbers.setdefault("newfstatat" if name == "fstatat" else name, int(number))
    tables = seccomp._PERMITTED | {name: call for name, (call, _) in seccomp._CONDITIONAL.items()}
    assert {name: call[column] for name, call in tables.items()} == {name: numbers.get(name) for name in tables}
