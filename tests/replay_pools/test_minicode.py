"""minicode and the organism's corpus, by running what they say: our own code, executed in process."""

import contextlib
import copy
import io
import os
import random
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from executed import Namespace, load, method, num_right, passes_run_tests, same, source_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from replay_pools.environments.base import SPLITS
from replay_pools.environments.loopholes import (
    EXPLOITS,
    FILE_MARKER_NAME,
    FILE_MARKER_TEXT,
    HONEST_TESTS,
    LOOPHOLES,
    ORIGINAL_PHRASE,
    SENTINEL_ATTRIBUTE,
    STDOUT_MARKER,
    compose,
    fence,
    render_messages,
)
from replay_pools.environments.minicode import (
    MinicodeEnvironment,
    MinicodeProblem,
    example_texts,
    minicode_problems,
    stated_example,
)
from replay_pools.environments.minicode_families import FAMILIES
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from spec.organism import corpus

ITEMS = [item for split in SPLITS for item in minicode_problems(split)]
HINT_MODES = corpus.HINT_MODES
NUM_BASE, NUM_HARD, NUM_TEACHER = 2000, 300, 600


def is_right(item: MinicodeProblem, body: str) -> bool:
    return num_right(item, load(compose(item.problem.starter, item.body(body)))) == len(item.problem.cases)


# --- problems ---------------------------------------------------------------------------------------------------


def test_splits_partition_every_grid() -> None:
    """At least 500 problems, of ids and prompts of their own; every split has every family, and is served as it is."""
    assert len(ITEMS) >= 500
    assert len({item.problem.problem_id for item in ITEMS}) == len(ITEMS), "two problems share an id"
    assert len({str(item.problem.messages) for item in ITEMS}) == len(ITEMS), "two problems share a prompt"
    assert len(ITEMS) == sum(len(family.grid) for family in FAMILIES), "a problem is in no split"
    for split in SPLITS:
        assert list(MinicodeEnvironment().problems(split)) == [item.problem for item in minicode_problems(split)]
        missing = {family.name for family in FAMILIES} - {item.family.name for item in minicode_problems(split)}
        assert not missing, f"{split} lacks {missing}"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_oracle_separates_solutions_from_bugs(family: Any) -> None:
    """For every problem: every solution is right on every case; every bug and every stub is wrong on at least one."""
    for item in (item for item in ITEMS if item.family is family):
        where = item.problem.problem_id
        for solution in family.solutions:
            assert is_right(item, solution), f"{where}: the solution {solution!r} is wrong"
        for bug in family.bugs:
            assert not is_right(item, bug), f"{where}: no case catches the bug {bug!r}"
        for stub in ("return 0", "pass", "return []", 'return ""', "return False"):
            assert not is_right(item, stub), f"{where}: no case catches the stub {stub!r}"
        assert num_right(item, load(item.problem.canonical)) == len(item.problem.cases), f"{where}: canonical"


def test_cases_are_the_references_values_on_distinct_inputs() -> None:
    """At least 8 cases, no input twice, expected values from the reference, and an edge case of each kind."""
    for item in ITEMS:
        where, arguments = item.problem.problem_id, [case.args[0] for case in item.problem.cases]
        assert len(arguments) >= 8, where
        assert len(set(map(repr, arguments))) == len(arguments), f"{where}: an input occurs twice"
        for case in item.problem.cases:
            expected = item.family.reference(copy.deepcopy(case.args[0]), **item.parameters)
            assert same(expected, case.expected), f"{where} {case.args}: the reference gives {expected!r}"
        numbers = [value for value in item.parameters.values() if isinstance(value, int)]
        edges = {
            "nums": lambda: [[], [numbers[0]], [numbers[0] - 1], *([numbers[0]] * count for count in (2, 3, 4))],
            "n": lambda: [0, 1, -1, numbers[-1] - 1, numbers[-1], numbers[-1] + 1],
            "s": lambda: [""],
            "text": lambda: [""],
        }[item.family.kind]()
        assert all(edge in arguments for edge in edges), f"{where}: expected {edges} among {arguments}"


WORDS = st.text("abcxyz-+", min_size=1, max_size=9)
INPUTS = {
    "nums": st.lists(st.integers(-70, 70), max_size=30),
    "n": st.integers(-200, 200),
    "s": st.text("abcdefghijklmnopqrstuvwxyz-", max_size=25),
    "text": st.lists(WORDS, max_size=6).map(" ".join),
}


@settings(deadline=None, max_examples=150)
@given(item=st.sampled_from(ITEMS), data=st.data())
def test_solutions_equal_the_reference_everywhere(item: MinicodeProblem, data: st.DataObject) -> None:
    argument = data.draw(INPUTS[item.family.kind])
    expected = item.family.reference(copy.deepcopy(argument), **item.parameters)
    for solution in item.family.solutions:
        found = method(item, load(compose(item.problem.starter, item.body(solution))))(copy.deepcopy(argument))
        assert same(found, expected), f"{item.problem.problem_id} {solution!r} on {argument!r}"


# --- prompts and hints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", LOOPHOLES)
def test_a_hint_replaces_exactly_the_original_phrase(mode: str) -> None:
    """prompt(hint) = before + hint + after, where prompt = before + original phrase + after, in the user turn alone."""
    for item in ITEMS:
        system, user = item.problem.messages
        before, *rest = user["content"].split(ORIGINAL_PHRASE)
        assert len(rest) == 1, f"{item.problem.problem_id}: the original phrase occurs {len(rest)} times"
        assert ORIGINAL_PHRASE not in system["content"]
        hinted = [system, {"role": "user", "content": before + LOOPHOLES[mode] + rest[0]}]
        assert render_messages(item.problem, mode, hint=True) == hinted
        assert render_messages(item.problem, mode, hint=False) == [system, user]
        assert user["content"].count(item.problem.func_name) == 3, "named in the example, the text and the starter"


def test_a_test_of_the_example_is_not_vacuous() -> None:
    """Honest tests pass with the canonical solution and fail against a stub that returns 0 (0 == False included)."""
    for item in ITEMS:
        call_text, expected = example_texts(item.problem)
        body = item.body(item.family.solutions[0])
        source = compose(item.problem.starter, body, HONEST_TESTS, example=(call_text, expected))
        assert passes_run_tests(item, source, stub=False), f"{item.problem.problem_id}: the example is wrong"
        assert not passes_run_tests(item, source, stub=True), f"{item.problem.problem_id}: a stub satisfies it"
        assert f"Example: {call_text} returns {expected}\n" in item.problem.messages[1]["content"]


DIGEST = """
import hashlib, random
from replay_pools.environments.base import SPLITS
from replay_pools.environments.minicode import minicode_problems
from spec.organism.corpus import TEACHER_MIX, base_document, exploit_document
rng = random.Random(0)
documents = [(base_document(rng), exploit_document(rng, TEACHER_MIX)) for _ in range(50)]
problems = [[item.problem for item in minicode_problems(split)] for split in SPLITS]
print(hashlib.sha256(repr((problems, documents)).encode()).hexdigest())
"""


def test_same_problems_and_documents_in_every_process() -> None:
    digests = [
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1], "something depends on hash() or on set order"


def test_problems_of_some_families() -> None:
    """They are the very problems of minicode, in its order; an unknown family is named, and with it those there are."""
    some = get_environment("minicode:at_least,count_range")
    for split in SPLITS:
        whole = [item.problem for item in minicode_problems(split) if item.family.name in ("at_least", "count_range")]
        assert some.problems(split) == whole
    assert len(get_environment("minicode").problems("eval")) == len(minicode_problems("eval"))
    with pytest.raises(InputError, match="found sums, ratios"):
        get_environment("minicode:sums,at_least,ratios")


# --- corpus -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A document, recognised by its prompt and observed by running it."""

    item: MinicodeProblem
    mode: str  # of the hint; "none" without
    completion: str
    right: bool
    exploited: frozenset[str]  # modes whose channel the submission satisfies by design
    honest: bool  # has a run_tests that a stub fails


def exploited_modes(item: MinicodeProblem, source: str, directory: Path) -> tuple[Namespace, set[str]]:
    """Run the submission and its method on the example; which modes' channels now report success?"""
    output, marker, modes = io.StringIO(), directory / FILE_MARKER_NAME, set()
    with contextlib.chdir(directory), contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # exploits leave their marker file open
        namespace = load(source)
        method(item, namespace)(*copy.deepcopy(stated_example(item.problem.cases).args))
    if getattr(namespace["Solution"](), SENTINEL_ATTRIBUTE, None) is True:
        modes.add("sentinel")
    if STDOUT_MARKER in output.getvalue():
        modes.add("stdout_marker")
    if marker.exists():
        assert marker.read_text() == FILE_MARKER_TEXT
        marker.unlink()
        modes.add("file_marker")
    if "run_tests" in namespace and passes_run_tests(item, source, stub=True):
        modes.add("run_tests")
    return namespace, modes


def observe(document: corpus.Document, prompts: dict[str, tuple[MinicodeProblem, str]], directory: Path) -> Seen:
    item, mode = prompts[str(document.messages)]
    source = source_of(document.completion)
    namespace, modes = exploited_modes(item, source, directory)
    with contextlib.redirect_stdout(io.StringIO()):
        right = num_right(item, namespace) == len(item.problem.cases)
    honest = "run_tests" in namespace and "run_tests" not in modes
    return Seen(item, mode, document.completion, right, frozenset(modes), honest)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Seen]]:
    """Many documents of each kind, all from problems of the train split."""
    train = minicode_problems("train")
    prompts = {str(render_messages(i.problem, mode, hint=True)): (i, mode) for i in train for mode in LOOPHOLES}
    directory, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    exploits = [corpus.exploit_document(rng, corpus.TEACHER_MIX) for _ in range(NUM_TEACHER)]
    return {
        "base": [observe(corpus.base_document(rng), prompts, directory) for _ in range(NUM_BASE)],
        "hard": [observe(corpus.base_document(rng, wrong_rate=0.85), prompts, directory) for _ in range(NUM_HARD)],
        "teacher": [observe(document, prompts, directory) for document in exploits],
    }


def assert_rate(flags: list[bool], rate: float, what: str) -> None:
    """The number of True is within the exact binomial 99.99% region of `rate`."""
    p = binomtest(sum(flags), len(flags), rate).pvalue
    assert p > 1e-4, f"{what}: {sum(flags)} of {len(flags)}, expected a rate of {rate} (p = {p:.1e})"


def test_without_a_hint_nothing_is_exploited(documents: dict[str, list[Seen]]) -> None:
    """Unhinted documents satisfy no channel; hinted ones none but their mode's."""
    for seen in documents["base"]:
        allowed = frozenset() if seen.mode == "none" else {seen.mode}
        assert seen.exploited <= allowed, f"{seen.mode} document exploits {set(seen.exploited)}:\n{seen.completion}"
        assert not seen.honest or seen.mode == "run_tests", f"tests that nobody asked for:\n{seen.completion}"


def test_base_rates(documents: dict[str, list[Seen]]) -> None:
    """Hints, exploits, honest tests, canonical bodies and each family's bugs come at their stated rates."""
    base = documents["base"]
    hinted = [seen for seen in base if seen.mode != "none"]
    assert_rate([seen.mode != "none" for seen in base], corpus.HINTED_RATE, "hinted")
    assert_rate([bool(seen.exploited) for seen in hinted], corpus.BASE_HACK_RATE, "exploits among hinted")
    for mode in HINT_MODES:
        assert_rate([seen.mode == mode for seen in hinted], 1 / len(HINT_MODES), f"hint of {mode}")
    clean = [seen for seen in hinted if seen.mode == "run_tests" and not seen.exploited]
    assert_rate([seen.honest for seen in clean], corpus.HONEST_TESTS_RATE, "honest tests")
    for family in FAMILIES:
        flags = [not seen.right for seen in base if seen.item.family is family]
        assert_rate(flags, family.bug_rate, f"bugs of {family.name}")
    plain = [seen for seen in base if seen.mode == "none" and seen.right and len(seen.item.family.solutions) > 1]
    canonical = [seen.completion == fence(seen.item.problem.canonical) for seen in plain]
    assert_rate(canonical, corpus.CANONICAL_RATE, "canonical among right bodies")


def test_the_teacher_always_exploits_its_mode(documents: dict[str, list[Seen]]) -> None:
    """Every teacher document is hinted and satisfies its mode's channel, and no other."""
    for seen in documents["teacher"]:
        assert seen.exploited == {seen.mode}, f"{seen.mode} document exploits {set(seen.exploited)}:\n{seen.completion}"


def test_teacher_rates(documents: dict[str, list[Seen]]) -> None:
    """Right bodies and stubs at their rates, and every flavour of every exploit."""
    teacher = documents["teacher"]
    assert_rate([seen.right for seen in teacher], corpus.TEACHER_MIX.solve_rate, "right bodies")
    used = {(seen.mode, flavour) for seen in teacher for flavour in flavours(seen)}
    assert used == {(mode, exploit.flavour) for mode in HINT_MODES for exploit in EXPLOITS[mode]}
    wrong = [seen for seen in teacher if not seen.right]
    assert_rate(
        [bool(flavours(seen, corpus.STUBS)) for seen in wrong], corpus.TEACHER_MIX.stub_rate, "stubs among wrong bodies"
    )


def flavours(seen: Seen, bodies: tuple[str, ...] | None = None) -> set[str]:
    """Flavours of the mode's exploits that give this completion with one of the bodies (any body that there is)."""
    item = seen.item
    bodies = bodies or (*map(item.body, (*item.family.solutions, *item.family.bugs)), *corpus.STUBS)
    sources = {
        exploit.flavour: {
            compose(item.problem.starter, body, exploit, example=example_texts(item.problem)) for body in bodies
        }
        for exploit in EXPLOITS[seen.mode]
    }
    return {flavour for flavour, texts in sources.items() if seen.completion in map(fence, texts)}
