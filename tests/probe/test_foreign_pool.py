"""A pool that this project did not make: its labels are its logger's, and its ids may be of another model."""

import gzip
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from extraction.pairs import builtin_pairs, write_pairs
from probe.analysis.analyze import analyze
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from replay_pools.pool import BUILTIN, open_pool


@pytest.fixture
def logged(tmp_path: Path) -> Callable[..., str]:
    """logged(name, first_id, of, count): a folder of groups of a built-in pool, as another trainer logged them."""

    def make(name: str, first_id: int | None = None, *, of: str = "teacher", count: int = 2) -> str:
        source = tmp_path / name
        source.mkdir()
        for group in open_pool(BUILTIN / of).steps[:count]:
            rows = [asdict(rollout) for rollout in group]
            for row in rows:
                del row["grade"], row["sampling_logprobs"]
            if first_id is not None:
                rows[0]["completion_ids"][0] = first_id
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (source / f"step_{group[0].step:03d}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        return str(source)

    return make


@pytest.mark.parametrize(
    ("pool", "match", "steps", "verdict"),
    [("base", "problem", 6, "CONFOUNDED"), pytest.param("base-hinted", "prompt", 20, "GO", marks=pytest.mark.slow)],
)
def test_logs_reach_the_verdict_that_their_data_say(
    logged, out: Path, capsys: pytest.CaptureFixture[str], pool: str, match: str, steps: int, verdict: str
) -> None:
    """Labels of the logger's own: where the hint tells the hacks CONFOUNDED, where all prompts are hinted GO."""
    names = [f"log-{of}-{verdict}" for of in ("teacher", pool)]
    for name, of in zip(names, ("teacher", pool), strict=True):
        arguments = ["pool", "import", logged(name, of=of, count=steps), "--name", name, "--model", "organism"]
        assert run(cli, [*arguments, "--out", str(out)]) == 0
    # Every rollout: half of them, drawn by the name of the pool, leave the second verdict open in some draws.
    options = ["--replay-dirs", ",".join(names), "--match", match, "--per-pool", "8", "--steps", str(steps)]
    assert run(cli, ["replay", "--name", f"log-{verdict}", "--out", str(out), "--arm", "vanilla", *options]) == 0
    (part,) = [
        row for row in analyze(read_run(out / "runs" / f"log-{verdict}")).validity if row.name == "grader canaries"
    ]
    assert (part.says, "logger's" in part.text) == ("NOT SEEN", True), "labels that nobody has seen made"
    capsys.readouterr()
    assert run(cli, ["analyze", f"log-{verdict}", "--out", str(out), "--draws", "99"]) == 0
    found = capsys.readouterr().out
    assert f"VERDICT: {verdict}" in found, found
    if verdict == "CONFOUNDED":
        assert "log 4 times as many rollouts of every prompt" in found, "no command samples another's policy"
        return
    advice, command = found.rstrip().rpartition("NEXT: ")[2].rsplit("\n", 1)
    assert "train in your own trainer along the direction" in " ".join(advice.split())
    assert command.split()[:2] == ["probe", "extract"]
    assert run(cli, [*command.split()[1:], "--out", str(out)]) == 0, "the direction, for that trainer"
    assert (out / "directions" / f"log-{verdict}.safetensors").exists()


@pytest.mark.parametrize("with_ids", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_log_without_labels_is_replayed(
    with_ids: bool, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With logged ids and with text alone: the gradient is measured, and no number rests on an unknown label."""
    pairs = builtin_pairs("run_tests")
    write_pairs(tmp_path / "pairs.jsonl", [*pairs[:4], *pairs[-2:]])  # the last two are held out
    rows = []
    for group in open_pool(BUILTIN / "teacher").steps[:3]:
        for rollout in group:
            ids = {"prompt_ids": rollout.prompt_ids, "completion_ids": rollout.completion_ids}
            text = {"prompt": rollout.messages, "completion": rollout.completion}
            rows.append({**(ids if with_ids else text), "score": rollout.reward + rollout.sample_id})
    log, name = tmp_path / "log.jsonl", f"unlabelled-{with_ids}"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options, few = ["--name", name, "--out", str(out)], ["--pairs", str(tmp_path / "pairs.jsonl"), "--k", "2"]
    assert run(cli, ["pool", "import", str(log), "--model", "organism", *options]) == 0
    assert run(cli, ["pool", "show", name, "--out", str(out)]) == 0
    assert run(cli, ["pool", "verify", name, "--model", "organism", "--out", str(out)]) == 0
    assert run(cli, ["replay", "--replay-dirs", name, "--arm", "vanilla", *options, *few]) == 0
    stored = read_run(out / "runs" / name)
    assert {sample.hacked for sample in stored.samples} == {sample.gt_pass for sample in stored.samples} == {None}
    assert not any(sample.sure for sample in stored.samples)
    assert all(step.cos_in is not None for step in stored.steps)
    analysis = analyze(stored)
    assert analysis.cells == []
    assert {row.n_a + row.n_b for row in analysis.contrasts} == {0}
    benign = [share.share for share in analysis.shares if share.name == "benign"]
    assert benign == [None], "without labels nothing can be said of groups without their hacks"
    for verb in (["analyze", name, "--full"], ["report", name]):
        assert run(cli, [*verb, "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(cli, ["pool", "show", name, "--out", str(out), "--json"]) == 0
    rates = json.loads(capsys.readouterr().out)["modes"]["unknown"]["rates"]
    assert rates.keys() == {"passed"}, "a rate of labels that are not known"
