"""Rollouts that other weights have sampled: of another base model, of later steps of a training; and their loss."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev

import pytest
from log_rows import lines
from printed import check_command
from worlds import World, make_run

from probe.analysis.analyze import analyze
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from replay_pools.pool import BUILTIN, open_pool

STEPS = 2
GROUPS = 4  # of a step


def log_of(path: Path, nlls: Mapping[tuple[int, int], float | None] | None = None, moved: float = 0.0) -> Path:
    """Two steps of a training with ids; with log-probabilities of the model, off by `moved` in the second step."""
    rows = []
    for number, group in enumerate(open_pool(BUILTIN / "teacher").steps[: STEPS * GROUPS]):
        for i, rollout in enumerate(group):
            names = ("problem_id", "prompt", "prompt_ids", "completion", "completion_ids", "reward", "hacked")
            row = {name: getattr(rollout, name) for name in names} | {"step": number // GROUPS}
            if nlls is not None:
                off = moved if number >= GROUPS else 0.0
                row["logprobs"] = [-(nlls[number, i] or 0.0) - off] * rollout.comp_len
            rows.append(row)
    return lines(path, rows)


@pytest.mark.slow
def test_steps_of_a_training_were_sampled_by_weights_that_move(small: str, few_pairs, tmp_path, out, probe) -> None:
    """Said by the log's own log-probabilities where it has any; --only-step replays one of them."""
    replay = ("--arm", "vanilla", "--per-pool", "8", *few_pairs)
    log = log_of(tmp_path / "silent.jsonl")
    probe("pool", "import", log, "--name", "steps-silent", "--model", small)
    _, errors = probe("replay", "--replay-dirs", "steps-silent", "--name", "steps-silent", *replay)
    assert "caution: rollouts of steps 0 to 1 of a training; its weights moved in between" in errors
    words = " ".join(probe("analyze", "steps-silent")[0].split())
    assert "of a training, whose weights moved in between; no log-probability says how far" in words
    nlls = {(row.src_step, row.src_sample): row.nll for row in read_run(out / "runs" / "steps-silent").samples}
    log = log_of(tmp_path / "moved.jsonl", nlls, moved=0.5)
    probe("pool", "import", log, "--name", "steps-moved", "--model", small)
    for name, options, said in (
        ("all", (), "0.25 nats a token off the model's: other weights sampled it (0 in step 0, 0.5 in step 1"),
        ("first", ("--only-step", "0"), ""),
        ("second", ("--only-step", "1-7"), "0.5 nats a token off the model's"),
    ):
        _, errors = probe("replay", "--replay-dirs", "steps-moved", "--name", f"moved-{name}", *options, *replay)
        assert len(read_run(out / "runs" / f"moved-{name}").steps) == (STEPS if name == "all" else 1) * GROUPS
        words = " ".join(probe("analyze", f"moved-{name}")[0].split())
        assert said in words if said else "nats a token off" not in words, words
    for step, message in (
        ("7", "expected a step of pool steps-moved, 0 to 1, found 7"),
        ("2-1", "expected steps and r"),
    ):
        refused = ("--name", "never", "--only-step", step)
        assert message in probe("replay", "--replay-dirs", "steps-moved", *refused, *replay, code=2)[1]
    _, errors = probe("replay", "--replay-dirs", "teacher", "--name", "never", "--only-step", "0", *replay, code=2)
    assert "none logged" in errors


@pytest.mark.slow
def test_a_pool_of_another_base_model_is_said_and_never_a_partner(small: str, few_pairs, tmp_path, probe) -> None:
    log = log_of(tmp_path / "log.jsonl")
    probe("pool", "import", log, "--name", "of-small", "--model", small)
    options = ("--arm", "vanilla", "--per-pool", "8", "--steps", "2", *few_pairs)
    _, errors = probe("replay", "--replay-dirs", "of-small", "--model", "organism", "--name", "other-base", *options)
    said = f"sampled by {small}, replayed on organism"
    assert said in " ".join(errors.split())
    assert said in " ".join(probe("analyze", "other-base")[0].split())


def test_the_first_of_a_number_of_steps_have_an_update(small: str, few_pairs, tmp_path: Path, out: Path, probe) -> None:
    """Groups without reward spread come last."""
    rows = [json.loads(line) for line in log_of(tmp_path / "log.jsonl").read_text().splitlines()]
    flat = {row["problem_id"] for row in rows[: 8 * GROUPS]}
    for i, row in enumerate(rows):
        row["reward"] = 1.0 if row["problem_id"] in flat else float(i % 2)
    probe("pool", "import", lines(tmp_path / "flat.jsonl", rows), "--name", "half-flat", "--model", small)
    options = ("--arm", "vanilla", "--per-pool", "8", "--steps", "2", "--name", "spread-first", *few_pairs)
    probe("replay", "--replay-dirs", "half-flat", *options)
    stored = read_run(out / "runs" / "spread-first")
    assert not {step.problem_id for step in stored.steps} & flat


@pytest.mark.slow
def test_the_loss_of_the_logger_is_that_of_the_check(small: str, few_pairs, tmp_path: Path, out: Path, probe) -> None:
    """Advantages divided by the group's standard deviation: `check` divides so, unless it is told; `replay` says it."""
    rows = []
    for group in open_pool(BUILTIN / "teacher").steps[:GROUPS]:
        rewards = [each.reward + each.sample_id % 3 for each in group]
        for each, reward in zip(group, rewards, strict=True):
            row = {"problem_id": each.problem_id, "prompt": each.messages, "completion": each.completion}
            row |= {"hacked": each.hacked, "reward": reward}
            rows.append(row | {"advantage": (reward - fmean(rewards)) / (stdev(rewards) + 1e-4)})
    path = lines(tmp_path / "scaled.jsonl", rows)
    for options, scale in (((), "group"), (("--set", "objective.scale_rewards=none"), "none")):
        name = f"scaled-{scale}"
        text, errors = probe("check", path, "--model", small, *few_pairs, "--name", name, "--steps", "2", *options)
        assert "divided by the standard deviation of the group" in text
        assert read_run(out / "runs" / name).settings.objective.scale_rewards == scale
        assert ("those of the replay of none" in " ".join(text.split())) == (scale == "none")
    options = ("--arm", "vanilla", "--per-pool", "8", "--steps", "2", *few_pairs)
    _, errors = probe("replay", "--replay-dirs", "scaled-group", "--name", "scaled-otherwise", *options)
    assert "(--set objective.scale_rewards=group)" in errors


@pytest.fixture(scope="module")
def logs(small: str, common: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with two imported pools, as two loggers wrote them."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "out").mkdir()
    (folder / "out" / "cache").symlink_to(common / "cache")
    names = ("problem_id", "prompt", "prompt_ids", "completion", "completion_ids", "reward", "hacked", "gt_pass")
    for name in ("teacher", "base-hinted"):
        rows = [
            {key: getattr(each, key) for key in names} for group in open_pool(BUILTIN / name).steps for each in group
        ]
        path = lines(folder / f"{name}.jsonl", rows)
        options = ["--name", f"my-{name}", "--model", small, "--out", str(folder / "out")]
        assert run(cli, ["pool", "import", str(path), *options]) == 0
    return folder


@pytest.mark.parametrize(
    ("told_by", "words"),
    [(None, "train in your own trainer along the direction"), ("hint", "are alike (probe docs pools)")],
)
def test_the_next_step_on_imported_pools_is_taken_in_the_users_trainer(told_by, words, logs, monkeypatch) -> None:
    """Worlds of a run on imported logs: rollouts are not sampled here, and nothing here trains in their environment."""
    monkeypatch.chdir(logs)
    pools = tuple(str(logs / "out" / "pools" / pool) for pool in ("my-teacher", "my-base-hinted"))
    verdict = analyze(make_run(Path("out") / "runs" / f"by-{told_by}", World(told_by=told_by, pools=pools))).verdict
    assert "labels of my-teacher, my-base-hinted are the logger's own" in " ".join(verdict.caveats)
    assert words in verdict.next.text
    assert bool(verdict.next.command) == (told_by is None)
    if verdict.next.command:
        check_command(verdict.next.command)
