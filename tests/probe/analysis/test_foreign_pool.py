"""A pool that this project did not make: its labels are its logger's, and its ids may be of another model."""

import json
from dataclasses import asdict
from pathlib import Path

from log_rows import lines

from extraction.pairs import builtin_pairs, write_pairs
from probe.analysis.analyze import analyze
from probe.records.run import read_run
from replay_pools.pool import BUILTIN, open_pool

DERIVED = ("grade", "sampling_logprobs")  # what no logger of another trainer writes


def test_a_log_without_labels_is_replayed(small: str, tmp_path: Path, out: Path, probe) -> None:
    """Text alone: the gradient is measured, and no number rests on an unknown label."""
    pairs, name = builtin_pairs("run_tests"), "unlabelled"
    write_pairs(tmp_path / "pairs.jsonl", [*pairs[:4], *pairs[-2:]])  # the last two are held out
    teacher = [rollout for group in open_pool(BUILTIN / "teacher").steps[:3] for rollout in group]
    texts = [
        {"prompt": one.messages, "completion": one.completion, "score": one.reward + one.sample_id} for one in teacher
    ]
    probe("pool", "import", lines(tmp_path / "log.jsonl", texts), "--model", small, "--name", name)
    probe("pool", "verify", name, "--model", small)
    few = ("--pairs", tmp_path / "pairs.jsonl", "--k", "2", "--name", name)
    probe("replay", "--replay-dirs", name, "--arm", "vanilla", *few)
    stored = read_run(out / "runs" / name)
    assert {sample.hacked for sample in stored.samples} == {sample.gt_pass for sample in stored.samples} == {None}
    assert not any(sample.sure for sample in stored.samples)
    assert all(step.cos_in is not None for step in stored.steps)
    analysis = analyze(stored)
    assert analysis.cells == []
    assert {row.n for row in analysis.of("contrasts")} == {0}
    benign = [share.value for share in analysis.of("shares") if share.name == "benign"]
    assert benign == [None], "without labels nothing can be said of groups without their hacks"
    for verb in (("analyze", name, "--full"), ("report", name), ("pool", "show", name)):
        probe(*verb)
    rates = json.loads(probe("pool", "show", name, "--json")[0])["modes"]["unknown"]["rates"]
    assert rates.keys() == {"passed"}, "a rate of labels that are not known"


def published(name: str, folder: Path, groups: int = 4) -> Path:
    """A log with the ids and the texts of all prompts and completions, as the seed author's pool has them."""
    rows = []
    for group in open_pool(BUILTIN / name).steps[:groups]:
        width = max(each.comp_len for each in group)
        for rollout in group:
            row = {key: value for key, value in asdict(rollout).items() if key not in DERIVED}
            padding = [0] * (width - rollout.comp_len)
            rows.append(
                row | {"src_problem_id": 1, "src_pool": name, "completion_ids": row["completion_ids"] + padding}
            )
    return lines(folder / f"{name}.jsonl", rows)


def test_a_published_log_is_graded_and_replayed(small: str, few_pairs, tmp_path: Path, out: Path, probe) -> None:
    """With the model that sampled it; its labels are normalised until they are graded again."""
    probe("pool", "import", published("teacher", tmp_path), "--name", "published", "--model", small)
    stored, original = open_pool(out / "pools" / "published").steps, open_pool(BUILTIN / "teacher").steps[:4]
    for name in ("prompt_ids", "completion_ids", "completion", "prompt", "finish_reason"):
        for group, before in zip(stored, original, strict=True):
            assert [getattr(each, name) for each in group] == [getattr(each, name) for each in before], name
    printed, _ = probe("pool", "regrade", "published", "--name", "again", "--workers", "1")
    assert open_pool(out / "pools" / "published").manifest["normalised_labels"]
    assert "normalised_labels" not in open_pool(out / "pools" / "again").manifest, "these labels are graded"
    assert [line.split()[1:3] for line in printed.splitlines() if line.startswith("hacked ")][-1] == ["32", "1.0000"]
    options = ("--name", "published", "--arm", "vanilla", "--per-pool", "8", *few_pairs)
    probe("replay", "--replay-dirs", "published", *options, "--model", small)
