"""A pool that this project did not make: its labels are its logger's, and its ids may be of another model."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from extraction.pairs import builtin_pairs, write_pairs
from probe.analysis.analyze import analyze
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from replay_pools.pool import BUILTIN, open_pool

DERIVED = ("grade", "sampling_logprobs")  # what no logger of another trainer writes


def test_a_log_without_labels_is_replayed(small: str, tmp_path: Path, out: Path, capsys) -> None:
    """Text alone: the gradient is measured, and no number rests on an unknown label."""
    pairs = builtin_pairs("run_tests")
    write_pairs(tmp_path / "pairs.jsonl", [*pairs[:4], *pairs[-2:]])  # the last two are held out
    rows = []
    for group in open_pool(BUILTIN / "teacher").steps[:3]:
        for rollout in group:
            text = {"prompt": rollout.messages, "completion": rollout.completion}
            rows.append({**text, "score": rollout.reward + rollout.sample_id})
    log, name = tmp_path / "log.jsonl", "unlabelled"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options, few = ["--name", name, "--out", str(out)], ["--pairs", str(tmp_path / "pairs.jsonl"), "--k", "2"]
    assert run(cli, ["pool", "import", str(log), "--model", small, *options]) == 0
    assert run(cli, ["pool", "show", name, "--out", str(out)]) == 0
    assert run(cli, ["pool", "verify", name, "--model", small, "--out", str(out)]) == 0
    assert run(cli, ["replay", "--replay-dirs", name, "--arm", "vanilla", *options, *few]) == 0
    stored = read_run(out / "runs" / name)
    assert {sample.hacked for sample in stored.samples} == {sample.gt_pass for sample in stored.samples} == {None}
    assert not any(sample.sure for sample in stored.samples)
    assert all(step.cos_in is not None for step in stored.steps)
    analysis = analyze(stored)
    assert analysis.cells == []
    assert {row.n for row in analysis.of("contrasts")} == {0}
    benign = [share.value for share in analysis.of("shares") if share.name == "benign"]
    assert benign == [None], "without labels nothing can be said of groups without their hacks"
    for verb in (["analyze", name, "--full"], ["report", name]):
        assert run(cli, [*verb, "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(cli, ["pool", "show", name, "--out", str(out), "--json"]) == 0
    rates = json.loads(capsys.readouterr().out)["modes"]["unknown"]["rates"]
    assert rates.keys() == {"passed"}, "a rate of labels that are not known"


def published(name: str, folder: Path, groups: int = 4) -> Path:
    """A log with the ids and the texts of all prompts and completions, as the seed author's pool has them."""
    rows = []
    for group in open_pool(BUILTIN / name).steps[:groups]:
        for rollout in group:
            row = {key: value for key, value in asdict(rollout).items() if key not in DERIVED}
            width = max(each.comp_len for each in group)
            padding = [0] * (width - rollout.comp_len)
            row |= {"src_problem_id": 1, "src_pool": name, "completion_ids": rollout.completion_ids + padding}
            rows.append(row)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_published_log_is_shown_graded_and_replayed(
    small: str, few_pairs: list[str], tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the model that sampled it; its labels are normalised until they are graded again."""
    log, place = published("teacher", tmp_path), ["--model", small, "--out", str(out)]
    assert run(cli, ["pool", "import", str(log), "--name", "published", *place]) == 0
    stored, original = open_pool(out / "pools" / "published").steps, open_pool(BUILTIN / "teacher").steps[:4]
    for name in ("prompt_ids", "completion_ids", "completion", "prompt", "finish_reason"):
        for group, before in zip(stored, original, strict=True):
            assert [getattr(each, name) for each in group] == [getattr(each, name) for each in before], name
    regrade = ["pool", "regrade", "published", "--name", "again", "--workers", "1", *place[2:]]
    capsys.readouterr()
    assert run(cli, regrade) == 0
    assert open_pool(out / "pools" / "published").manifest["normalised_labels"]
    assert "normalised_labels" not in open_pool(out / "pools" / "again").manifest, "these labels are graded"
    printed = capsys.readouterr().out
    assert [line.split()[1:3] for line in printed.splitlines() if line.startswith("hacked ")][-1] == ["32", "1.0000"]
    options = ["--replay-dirs", "published", "--name", "published", "--arm", "vanilla", "--per-pool", "8", *few_pairs]
    assert run(cli, ["replay", *options, *place]) == 0
