"""What `probe pool regrade` leaves, and what an analysis reads there: whether the labels of a run's pools repeat."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from directories import contents

from probe.analysis.verdict.pools import PoolFacts
from probe.analysis.verdict.validity import repeats
from replay_pools.base.files import read_sealed, write_sealed
from replay_pools.pool import BUILTIN, Pool, PoolWriter, open_pool

NAME = "regrade agreement"
COMMAND = re.compile(r"not graded again: (probe pool regrade .+? --out [^\s;]+)")


@pytest.fixture
def write_pool(out: Path, small: str) -> Callable[..., Pool]:
    """Groups of 8 of the teacher, as if the small model had written them, with `hacked` flipped in some rollouts."""

    def make(name: str, num_flipped: int) -> Pool:
        teacher = open_pool(BUILTIN / "teacher")
        policy = {"base_model": small, "adapter": None, "base_weights_sha256": None}
        writer = PoolWriter(out / "pools" / name, header=teacher.header() | {"policy": policy})
        for i, group in enumerate(teacher.steps[:5]):
            rows = list(group)
            if i < num_flipped:
                grade = replace(rows[0].grade, hacked=not rows[0].hacked)
                rows[0] = replace(rows[0], hacked=grade.hacked, grade=grade)
            writer.write_step(i, rows)
        return writer.finish()

    return make


@pytest.mark.parametrize(
    ("name", "num_flipped", "says", "words", "code"),
    [
        ("seen", 0, "HOLDS", "seen: labels repeat in 100.0% of 40 rollouts", 0),
        ("flipped", 2, "BROKEN", "flipped: labels repeat only in part: hacked in 95.0% of 40 rollouts", 1),
    ],
)
def test_labels_are_graded_again_by_the_printed_command(
    name: str, num_flipped: int, says: str, words: str, code: int,
    write_pool: Callable[..., Pool], replay: Callable[..., Path], few_pairs: list[str], probe,
) -> None:  # fmt: skip
    """Not seen, with the command; that very command; then seen. The pool is not touched. Of a pool that was changed
    since, nothing is seen.
    """

    def part() -> dict[str, Any]:
        found = json.loads(probe("analyze", name, "--json")[0])
        return next(part for part in found["validity"] if part["name"] == NAME)

    pool = write_pool(name, num_flipped)
    replay(name, "--replay-dirs", name, "--arm", "vanilla,random", *few_pairs)
    assert part()["says"] == "NOT SEEN"
    stored, (command,) = contents(pool.path), COMMAND.findall(part()["text"])
    probe(*shlex.split(command)[1:-2])
    assert stored == contents(pool.path)
    assert (part()["says"], words in part()["text"]) == (says, True)
    # A broken part is the verdict, and fails the check.
    assert ("VERDICT: BROKEN" in probe("analyze", name, "--check", code=code)[0]) == bool(code)
    manifest = read_sealed(pool.path / "manifest.json")
    write_sealed(pool.path / "manifest.json", manifest | {"note": "changed"})
    assert "moved or changed since" in part()["text"]


def graded_again(rates: dict[str, float | None], *, own: bool = False, **grader: str) -> PoolFacts:
    """A pool of 100 rollouts whose regrade, by the given grader, repeats labels at these rates; `own`: it is one."""
    common = {"version": "1", "isolation": "B", "code_rule": "solution", "cpu_s": 4, "cpu_multiple": 10}
    rows = []
    for label, rate in rates.items():
        rows.append({"label": label, "n": 0 if rate is None else 100, "rate": rate, "old_only": 0, "new_only": 0})
    source = {"name": "mine", "grader": common, "agreement": rows}
    manifest = {"grader": common | grader, "regraded_from": source}
    second = PoolFacts(name="mine-again", reference="mine-again", manifest=manifest)
    return second if own else PoolFacts(name="mine", reference="mine", manifest={"grader": common}, regrade=second)


@pytest.mark.parametrize(
    ("pool", "holds", "words"),
    [
        (graded_again({"hacked": 0.99, "reward": 1.0}), "HOLDS", "in 99.0% of 100 rollouts"),
        (graded_again({"hacked": 1.0, "reward": 0.98}), "BROKEN", "only in part: reward in 98.0%"),
        (graded_again({"hacked": 1.0, "compiles": None}), "HOLDS", "in 100.0%"),  # never recorded: nothing to repeat
        (graded_again({"hacked": None}), "NOT SEEN", "no label that could be compared"),
        (graded_again({"hacked": 0.5}, code_rule="joined"), "NOT SEEN", "different code rules"),
        (graded_again({"hacked": 1.0}, isolation="unsafe-local"), "NOT SEEN", "without isolation"),
        (graded_again({"hacked": 0.5}, version="2"), "BROKEN", "grader 1, then 2"),
        (graded_again({"hacked": 1.0}, own=True), "HOLDS", "in 100.0%"),
        (graded_again({"hacked": 0.5}, own=True), "BROKEN", "only in part"),
        (graded_again({"hacked": 0.5}, own=True, version="2"), "NOT SEEN", "grader 1, then 2"),
    ],
)
def test_what_a_regrade_shows(pool: PoolFacts, holds: bool | None, words: str) -> None:
    """Another code rule, or a grader that nothing confines, shows nothing; a new grader need not repeat an old one."""
    judged, text = repeats(pool)
    assert (judged, words in text) == (holds, True), text
