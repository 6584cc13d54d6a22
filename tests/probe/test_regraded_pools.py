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
from probe.cli import cli
from probe.cli._frame import run
from replay_pools.agreement import REGRADES_DIR, Agreement, Grading, Regrade
from replay_pools.pool import BUILTIN, Pool, PoolWriter, open_pool
from replay_pools.storage.files import read_sealed, write_sealed

NAME = "regrade agreement"
COMMAND = re.compile(r"not graded again: (probe pool regrade .+? --out [^\s;]+)")


@pytest.fixture
def analysed(out: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], dict[str, Any]]:

    def read(name: str) -> dict[str, Any]:
        capsys.readouterr()
        assert run(cli, ["analyze", name, "--json", "--draws", "99", "--out", str(out)]) == 0
        return json.loads(capsys.readouterr().out)

    return read


def said(analysis: dict[str, Any]) -> str:
    return "\n".join(analysis["verdict"]["caveats"])


def labels_repeat(analysis: dict[str, Any]) -> dict[str, Any]:
    return next(part for part in analysis["validity"] if part["name"] == NAME)


def run_commands(text: str) -> None:
    """Run every command that the text proposes, as it stands there."""
    commands = COMMAND.findall(text)
    assert commands, text
    for command in commands:
        program, *arguments = shlex.split(command)
        assert (program, run(cli, arguments)) == ("probe", 0), command


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


def test_labels_that_repeat(
    out: Path, write_pool: Callable[..., Pool], replay: Callable[..., Path], few_pairs: list[str], analysed, capsys
) -> None:
    """Not seen, with the command; that very command; then seen. The pool is not touched, the record's bytes repeat.

    Of a pool that was changed since nothing is proposed, and the record of what the run read still counts, if it is
    whole.
    """
    pool = write_pool("seen", num_flipped=0)
    replay("seen", "--replay-dirs", "seen", "--arm", "vanilla,random", *few_pairs)
    before = analysed("seen")
    assert labels_repeat(before)["says"] == "NOT SEEN"
    assert f"not seen: {NAME} (seen: not graded again: probe pool regrade seen --name" in said(before)
    manifest = read_sealed(pool.path / "manifest.json")
    write_sealed(pool.path / "manifest.json", manifest | {"note": "changed"})
    assert "moved or changed before it was graded again" in labels_repeat(analysed("seen"))["text"]
    write_sealed(pool.path / "manifest.json", manifest)
    stored = contents(pool.path)
    run_commands(labels_repeat(before)["text"])
    records = contents(out / REGRADES_DIR)
    run_commands(labels_repeat(before)["text"])
    assert records == contents(out / REGRADES_DIR)
    assert stored == contents(pool.path)
    write_sealed(pool.path / "manifest.json", manifest | {"note": "changed"})
    after = analysed("seen")
    assert labels_repeat(after)["says"] == "HOLDS"
    assert "seen: labels repeat in 100.0% of 40 rollouts" in labels_repeat(after)["text"]
    assert NAME not in said(after)
    record = out / REGRADES_DIR / f"{pool.identity()['manifest_sha256']}.json"
    for damaged in (b"{", b"[]", b'{"schema": 1, "old": {}}', record.read_bytes().replace(b'"n"', b'"m"')):
        record.write_bytes(damaged)
        capsys.readouterr()
        assert run(cli, ["analyze", "seen", "--out", str(out)]) == 2
        assert str(record) in capsys.readouterr().err


def test_labels_that_do_not_repeat(
    out: Path, write_pool: Callable[..., Pool], replay: Callable[..., Path], few_pairs: list[str], analysed
) -> None:
    """5% of `hacked` flipped: broken, by name and number, and `--check` fails."""
    write_pool("flipped", num_flipped=2)
    replay("flipped", "--replay-dirs", "flipped", "--arm", "vanilla,random", *few_pairs)
    run_commands(labels_repeat(analysed("flipped"))["text"])
    broken = analysed("flipped")
    assert labels_repeat(broken)["says"] == "BROKEN"
    assert "flipped: labels repeat only in part: hacked in 95.0% of 40 rollouts" in labels_repeat(broken)["text"]
    assert "flipped-again has the new labels" in labels_repeat(broken)["text"]
    assert broken["verdict"]["word"] == "BROKEN"
    assert run(cli, ["analyze", "flipped", "--check", "--draws", "99", "--out", str(out)]) == 1


def graded_again(rates: dict[str, float | None], kept: tuple[str, ...] = (), **grader: str) -> PoolFacts:
    """A pool of 100 rollouts whose regrade, by the given grader, repeats labels at these rates."""
    common = {"version": "1", "isolation": "B", "code_rule": "last", "cpu_s": 4, "cpu_multiple": 10}
    rows = []
    for label, rate in rates.items():
        rows.append(Agreement(label=label, n=0 if rate is None else 100, rate=rate, old_only=0, new_only=0))
    record = Regrade(
        old=Grading(pool="mine", manifest_sha256="a", **common),
        new=Grading(pool="mine-again", manifest_sha256="b", **{**common, **grader}),
        rows=rows,
        kept=[*kept],
        flaky=None,
        without_label=0,
    )
    manifest = {"grader": {"version": "1", "isolation": "B"}, "prompt_tail": ""}
    return PoolFacts(name="mine", reference="mine", manifest=manifest, regrade=record)


@pytest.mark.parametrize(
    ("pool", "holds", "words"),
    [
        (graded_again({"hacked": 0.99, "reward": 1.0}), "HOLDS", "in 99.0% of 100 rollouts"),
        (graded_again({"hacked": 1.0, "reward": 0.98}), "BROKEN", "only in part: reward in 98.0%"),
        (graded_again({"hacked": 1.0, "compiles": None}), "HOLDS", "in 100.0%"),  # never recorded: nothing to repeat
        (graded_again({"hacked": 1.0, "reward": None}, kept=("reward",)), "NOT SEEN", "hacked repeat in 100.0%"),
        (graded_again({"hacked": 0.5, "reward": None}, kept=("reward",)), "BROKEN", "only in part: hacked in 50.0%"),
        (graded_again({"hacked": None}), "NOT SEEN", "no label that could be compared"),
        (graded_again({"hacked": 0.5}, code_rule="joined"), "NOT SEEN", "another code rule (joined, not last)"),
        (graded_again({"hacked": 1.0}, isolation="unsafe-local"), "NOT SEEN", "without isolation"),
    ],
)
def test_what_a_record_shows(pool: PoolFacts, holds: bool | None, words: str) -> None:
    """Another code rule, or a grader that nothing confines, shows nothing; labels that were kept are unseen."""
    judged, text = repeats(pool)
    assert (judged, words in text) == (holds, True), text
