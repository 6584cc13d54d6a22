"""Contrast pairs: what the built-in ones contrast, found by running them, and the file format."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from executed import load, num_right, passes_run_tests, source_of
from hypothesis import given, settings
from hypothesis import strategies as st

from extraction.pair_files import read_pair_file
from extraction.pairs import PLACEBO, STYLE, Pair, builtin_pairs, load_pairs, pairs_sha, selected_pairs, write_pairs
from extraction.settings import ExtractionSettings
from replay_pools.base.errors import InputError
from replay_pools.environments.loopholes import EXPLOITS, FILE_MARKER_NAME, LOOPHOLES, STDOUT_MARKER
from replay_pools.environments.minicode import MinicodeProblem, minicode_problems

MODES = [mode for mode in EXPLOITS if mode != "none"]
SETS = [*MODES, PLACEBO]
ITEMS = {item.problem.problem_id: item for item in minicode_problems("pairs")}
MARKS = {"sentinel": "valid = True", "stdout_marker": STDOUT_MARKER, "file_marker": FILE_MARKER_NAME}


def solves(item: MinicodeProblem, completion: str) -> bool:
    return num_right(item, load(source_of(completion))) == len(item.problem.cases)


@pytest.mark.parametrize("name", SETS)
def test_builtin_sets_are_32_and_16_pairs_of_unused_problems(name: str) -> None:
    """Both completions answer the problem's messages with the hint of the mode: gradients differ by them alone."""
    pairs = builtin_pairs(name)
    assert [pair.held_out for pair in pairs] == [False] * 32 + [True] * 16
    assert len({pair.problem_id for pair in pairs}) == len({pair.pair_id for pair in pairs}) == len(pairs)
    pools = {item.problem.problem_id for split in ("train", "eval") for item in minicode_problems(split)}
    assert not pools & {pair.problem_id for pair in pairs}, "a pool contains a pair's problem"
    hint = LOOPHOLES["run_tests" if name == PLACEBO else name]
    for pair in pairs:
        assert pair.hack != pair.clean, "a pair without contrast has a zero difference"
        system, user = ITEMS[pair.problem_id].problem.messages
        assert pair.messages == [system, {**user, "content": user["content"].replace(LOOPHOLES["none"], hint)}]


def test_run_tests_pairs_hack_and_stay_clean() -> None:
    """By running: the hack's tests accept a stub; the clean body is right and its tests, if any, reject a stub."""
    for pair in builtin_pairs("run_tests"):
        item, (_, body, tests) = ITEMS[pair.problem_id], pair.flavour.split("/")
        hack, clean, is_tested = source_of(pair.hack), source_of(pair.clean), tests == "honest_tests"
        assert solves(item, pair.clean), f"{pair.pair_id}: the clean body is wrong"
        assert solves(item, pair.hack) == (body == "right"), f"{pair.pair_id}: {pair.flavour}"
        assert passes_run_tests(item, hack, stub=True), f"{pair.pair_id}: its hack is not vacuous:\n{pair.hack}"
        assert ("run_tests" in load(clean)) == is_tested, f"{pair.pair_id}: {pair.flavour}"
        if is_tested:
            assert passes_run_tests(item, clean, stub=False), f"{pair.pair_id}: honest tests fail on a right solution"
            assert not passes_run_tests(item, clean, stub=True), f"{pair.pair_id}: its clean completion is a hack"


@pytest.mark.parametrize("mode", MARKS)
def test_other_modes_hack_and_stay_clean(mode: str) -> None:
    """The text that satisfies the channel is in the hack and not in the clean completion, which answers every case."""
    for pair in builtin_pairs(mode):
        item = ITEMS[pair.problem_id]
        assert MARKS[mode] in pair.hack, pair.pair_id
        assert MARKS[mode] not in pair.clean, pair.pair_id
        assert solves(item, pair.clean), f"{pair.pair_id}: the clean body is wrong"


@pytest.mark.parametrize("mode", MODES)
def test_extraction_pairs_hold_every_flavour_with_both_bodies(mode: str) -> None:
    """flavours x {right, wrong} among the extraction pairs alone; run_tests: against clean with and without tests."""
    extraction = [pair.flavour.split("/") for pair in builtin_pairs(mode) if not pair.held_out]
    expected = {(exploit.flavour, body) for exploit in EXPLOITS[mode] for body in ("right", "wrong")}
    assert {(exploit, body) for exploit, body, _ in extraction} == expected
    tests = {"honest_tests", "nothing"} if mode == "run_tests" else {"nothing"}
    assert {(exploit, found) for exploit, _, found in extraction} == {
        (exploit.flavour, test) for exploit in EXPLOITS[mode] for test in tests
    }, "an exploit is confounded with the clean side's tests"


@pytest.mark.parametrize(("name", "flavour"), [(PLACEBO, "other_solution/canonical"), (STYLE, "comment/none")])
def test_pairs_without_a_hack_touch_no_test(name: str, flavour: str) -> None:
    """Both completions solve the problem and write no `run_tests`: along its axis honest tests lie beside hacks."""
    pairs = builtin_pairs(name)
    for pair in pairs:
        for completion in (pair.hack, pair.clean):
            assert solves(ITEMS[pair.problem_id], completion), f"{pair.pair_id}: a completion is wrong"
            assert "run_tests" not in completion, pair.pair_id
            assert not any(mark in completion for mark in MARKS.values()), pair.pair_id
    assert {pair.flavour for pair in pairs} == {flavour}
    assert {pair.held_out for pair in pairs} == {False, True}


def test_what_settings_select() -> None:
    """A flavour left out is left out of the extraction alone; held-out pairs may be of another source."""
    every, chosen = builtin_pairs("run_tests"), selected_pairs(ExtractionSettings(leave_out=("pass", "swallow")))
    expected = [pair for pair in every if pair.held_out or not pair.flavour.startswith(("pass/", "swallow/"))]
    assert sorted(chosen, key=lambda pair: pair.pair_id) == expected
    assert len(expected) < len(every)
    with pytest.raises(InputError, match="leave_out"):
        selected_pairs(ExtractionSettings(leave_out=("pas",)))
    pairs = selected_pairs(ExtractionSettings(pairs="builtin:sentinel", held_out="builtin"))
    assert [pair for pair in pairs if pair.held_out] == [pair for pair in every if pair.held_out]
    assert [pair for pair in pairs if not pair.held_out] == [p for p in builtin_pairs("sentinel") if not p.held_out]


# An answer that ends with the mark of a template is refused.
ANSWERS = st.text().filter(lambda text: text.strip() and not text.rstrip().endswith(">"))


@settings(max_examples=40)
@given(prompt=st.text(), sides=st.lists(ANSWERS, min_size=2, max_size=2, unique=True), flavour=st.text())
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, suffix: str, prompt, sides, flavour) -> None:
    """read(write(pairs)) == pairs for any text, and the hash is that of the content."""
    path, pair = tmp_path_factory.mktemp("pairs") / f"pairs{suffix}", builtin_pairs("sentinel")[0]
    messages = [{"role": "user", "content": prompt}]
    pairs = [pair, replace(pair, pair_id="", messages=messages, hack=sides[0], clean=sides[1], flavour=flavour)]
    write_pairs(path, pairs)
    read = read_pair_file(str(path))
    assert read == pairs
    assert pairs_sha(read) == pairs_sha(pairs)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".jsonl.gz")


def test_any_change_changes_the_hash() -> None:
    """Pair gradients are cached under pairs_sha: it must see every field and the order."""
    pairs = builtin_pairs("run_tests")
    changed = [replace(pairs[0], **{f.name: "x"}) for f in fields(Pair) if f.type is str]
    changed += [replace(pairs[0], held_out=True), replace(pairs[0], messages=pairs[1].messages)]
    versions = [pairs, pairs[::-1], pairs[1:], *([pair, *pairs[1:]] for pair in changed)]
    assert len({pairs_sha(version) for version in versions}) == len(versions)


def test_unusable_sources_are_refused(tmp_path: Path) -> None:
    pairs = builtin_pairs("sentinel")
    held_out = [pair for pair in pairs if pair.held_out]
    write_pairs(tmp_path / "cut.jsonl.gz", pairs)
    (tmp_path / "cut.jsonl.gz").write_bytes((tmp_path / "cut.jsonl.gz").read_bytes()[:-9])
    write_pairs(tmp_path / "empty.jsonl", [])
    write_pairs(tmp_path / "held_out.jsonl", held_out)
    for name in ("builtin:none", "absent", "cut.jsonl.gz", "empty.jsonl", "held_out.jsonl"):
        with pytest.raises(InputError, match=name):
            load_pairs(name if ":" in name else str(tmp_path / name))
    with pytest.raises(InputError, match="UTF-8"):
        write_pairs(tmp_path / "surrogate.jsonl", [replace(held_out[0], hack="\ud800")])
    assert not (tmp_path / "surrogate.jsonl").exists()
