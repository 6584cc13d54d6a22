"""`probe check` through the real command: from logs with text alone and pairs of three keys to a verdict and a page."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from log_rows import LOGGED, Rows, lines, pair_rows, two_policies
from small import HYBRID, small_model

import probe as package
from probe.records.run import read_run
from probe.runs.arguments import reworded
from replay_pools.base.errors import InputError
from replay_pools.pool import open_pool

GROUPS = 5
PAIRS = 18


logged, three_keys = partial(two_policies, groups=GROUPS), partial(pair_rows, PAIRS)  # each pair has its own prompt


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Rows], str]:
    """write(name, rows) -> the path of a file of JSON lines."""

    return lambda name, rows: str(lines(tmp_path / name, rows))


@pytest.fixture
def log(write: Callable[[str, Rows], str]) -> str:
    return write("mine.jsonl", logged(*LOGGED))


@pytest.fixture
def pairs(write: Callable[[str, Rows], str]) -> str:
    return write("pairs.jsonl", three_keys())


@pytest.fixture
def check(probe: Callable[..., tuple[str, str]]) -> Callable[..., tuple[str, str]]:
    """`probe check`."""
    return partial(probe, "check")


def test_text_and_three_keys_end_in_a_verdict(log: str, pairs: str, check, small: str, out: Path) -> None:
    """What was recognised stands above the verdict, the page below; the same command uses again what is there."""
    command = (log, "--pairs", pairs, "--model", small, "--name", "own")
    text, _ = check(*command)
    lines = text.splitlines()
    assert len(lines) <= 45
    assert lines[0].startswith(f"log {log}: {8 * GROUPS} rollouts in {GROUPS} groups, read as ")
    pasted = shlex.split(lines[0].partition("read as ")[2].partition(": give")[0])
    assert pasted[::2] == ["--format", "--map"]
    assert "reward=reward,hacked=hacked" in pasted[3]
    assert "ids: retokenised" in text
    assert "held out: 6 of 18 pairs, split by prompt" in text
    assert text.index("pairs.jsonl: 18") < text.index("VERDICT: ") < text.index("page ")
    assert (out / "reports" / "own.html").exists()
    stored = read_run(out / "runs" / "own")
    assert len({step.step for step in stored.steps}) == GROUPS
    assert {step.arm for step in stored.steps} == {"vanilla", "projected", "random"}
    assert len(list(stored.path.glob("step_*.tokens.jsonl.gz"))) == GROUPS, "the page has colours"
    assert {len([s for s in stored.samples if (s.step, s.arm) == (0, "vanilla")])} == {8}
    before = {path: path.stat().st_mtime_ns for path in (out / "runs" / "own").iterdir()}
    assert f"\nmodel {small}: 100.0% of the linear weights have coordinates\n" in text
    assert check(*command)[0] == text
    assert {path: path.stat().st_mtime_ns for path in (out / "runs" / "own").iterdir()} == before


def test_python_does_what_the_command_does(log: str, pairs: str, check, small: str, out: Path) -> None:
    """Of rows in memory: the same rollouts and verdict. Errors speak of arguments."""
    rows, own = logged(*LOGGED), three_keys()
    analysis = package.check(rows, own, small, steps=2, name="checked-in-python", out=out, say=lambda _: None)
    command = (log, "--pairs", pairs, "--model", small, "--steps", "2", "--name", "checked-in-shell")
    text, _ = check(*command, "--json")
    assert json.loads(text)["verdict"]["word"] == analysis.verdict.word
    ours, theirs = (open_pool(out / "pools" / name).steps for name in ("checked-in-python", "checked-in-shell"))
    assert [*ours] == [*theirs]
    with pytest.raises(InputError) as error:
        package.check([{**row, "reward": {"a": 1.0}} for row in rows], own, small, out=out, mapping={"step": "none"})
    assert 'mapping={"reward": "reward.a"}' in str(error.value)
    assert "--" not in str(error.value)
    with pytest.raises(InputError, match="expected a dict"):
        package.check(rows, own, small, out=out, mapping="reward=score")
    options = 'mapping={"prompt": "question", "reward": "score"}: or settings={"source.per_pool": 3}'
    assert reworded("--map prompt=question,reward=score: or --per-pool 3") == options


def test_a_bad_log_is_refused_without_torch(write, out: Path) -> None:
    """Which takes seconds to import."""
    log = write("bad.jsonl", [{"prompt": "p", "completion": "c", "reward": "much"}])
    code = "import sys; from probe.cli import cli; from probe.cli._frame import run; "
    code += "print(run(cli, sys.argv[1:]), 'torch' in sys.modules)"
    arguments = ("check", log, "--pairs", "builtin", "--model", "organism", "--out", str(out))
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 False"
    assert "line 1 reward: expected a finite number" in done.stderr


@pytest.mark.slow
def test_what_is_not_adapted_is_said(write, check, tmp_path: Path, out: Path) -> None:
    """Of a hybrid model without its attention: before the replay, and with the verdict."""
    hybrid = str(small_model(tmp_path / "hybrid", **HYBRID))
    log, pairs = write("mine.jsonl", logged(*LOGGED, groups=2)), write("pairs.jsonl", three_keys()[:4])
    few = ("--set", 'model.targets=["mlp"]')
    text, _ = check(log, "--pairs", pairs, "--model", hybrid, "--k", "1", "--name", "hybrid", *few)
    stored = read_run(out / "runs" / "hybrid").manifest["adapted"]
    assert 0.5 < stored["share"] < 0.9
    assert next(iter(stored["left_out"])) == "linear_attn.in_proj_qkv"
    caution = f"{stored['share']:.1%} of the linear weights have coordinates: no gradient, direction or"
    before, _, after = text.partition("VERDICT: ")
    assert f"model {hybrid}: {caution}" in before
    assert f"- {caution}" in " ".join(after.split())


def test_what_the_command_decides_itself_cannot_be_set(log: str, pairs: str, check, out: Path) -> None:
    values = {"source.replay_dirs": '["a"]', "intervention.arms": '["vanilla"]', "intervention.v_hack": "mine"}
    options = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    _, errors = check(log, "--pairs", pairs, "--model", "organism", "--name", "own-way", *options, code=2)
    assert [line.split(": expected")[0] for line in errors.splitlines()] == [
        f"probe: error: --set {key}" for key in values
    ]
    assert not (out / "pools" / "own-way").exists()


@pytest.mark.slow
def test_without_labels_there_is_a_verdict_and_it_says_what_is_missing(write, pairs: str, check, small: str) -> None:
    """The contrast needs a label, and is not called confounded."""
    log = write("silent.jsonl", logged(*LOGGED[:-1], groups=20, each=2))
    text, _ = check(log, "--pairs", pairs, "--model", small, "--name", "silent", "--json")
    result = json.loads(text)
    about = result["verdict"]["findings"][1]
    assert (about["says"], about["number"]) == ("UNMEASURED", None)
    assert about["text"] == "no rollout says whether it hacks"
    assert result["verdict"]["word"] == "UNDERPOWERED"
    assert {part["text"] for part in result["validity"][:2]} == {"no rollout has a label"}


def test_all_faults_of_both_files_come_at_once(write, check, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    """Before a model is loaded; nothing is written."""
    monkeypatch.setattr("replay_pools.policy.load.load_policy", None)
    rows, pairs = logged(*LOGGED), three_keys()
    rows[3] = {**rows[3], "reward": "much"}
    rows[4] = {**rows[4], "completion": None}
    pairs[2] = {**pairs[2], "hack": 3}
    pairs[5] = {key: value for key, value in pairs[5].items() if key != "clean"}
    log, pair_file = write("bad.jsonl", rows), write("bad-pairs.jsonl", pairs)
    text, errors = check(log, "--pairs", pair_file, "--name", "bad", code=2)
    assert text == ""
    lines = errors.splitlines()
    for words in ("line 4 reward", "line 5 completion", "line 3 hack", "line 6 clean", "--model: expected a model"):
        assert sum(words in line for line in lines) == 1, words
    assert len(lines) == 5
    assert not (out / "pools" / "bad").exists()


def test_without_pairs_it_says_what_the_log_holds_and_what_is_needed(log: str, check) -> None:
    text, errors = check(log, "--model", "organism", code=2)
    assert f"{8 * GROUPS} rollouts in {GROUPS} groups" in text
    assert 'rows {"prompt", "hack", "clean"}' in errors
    assert "--pairs builtin" in errors


@pytest.mark.slow
def test_groups_of_other_sizes_are_compared_by_the_smallest(write, pairs: str, check, small: str, out: Path) -> None:
    command = (write("uneven.jsonl", logged(*LOGGED)[:-4]), "--pairs", pairs, "--model", small, "--steps", "2")
    text, _ = check(*command, "--name", "uneven")
    assert "groups of 4 to 8 rollouts with a reward: 4 are compared at a time" in text
    assert len(read_run(out / "runs" / "uneven").samples) == 2 * 3 * 4
    _, errors = check(*command[:-2], "--name", "larger", "--set", "source.per_pool=8", code=2)
    assert "expected at least 8 rollouts (--per-pool)" in errors


def test_what_cannot_be_replayed_is_refused_before_a_run(log: str, pairs: str, check, out: Path) -> None:
    """By what the command calls."""
    command = (log, "--pairs", pairs, "--model", "organism", "--name", "unmade")
    for options, message in (
        (("--k", "50"), "--k: expected at most 12, the pairs that are not held out, found 50"),
        (("--set", "source.per_pool=20"), "--per-pool"),
        (("--steps", "100"), "--steps"),
        (("--device", "cuda:99"), "--device: expected auto, cpu or a present device"),
        (("--set", "objective.loss_type=dr_grpo"), "objective.max_completion_length"),
        (("--set", "objective.old_logprobs=recorded"), "sampler: expected "),
        (("--set", "model.adapter=nowhere/at-all"), "nowhere/at-all"),
    ):
        _, errors = check(*command, *options, code=2)
        assert message in errors, options
        assert not (out / "runs" / "unmade" / "manifest.json").exists()


def test_a_log_without_an_update_is_refused_in_the_words_of_the_command(write, pairs: str, check, out: Path) -> None:
    rows = logged(*LOGGED)
    alone = [{**row, "problem_id": f"p{i}", "prompt": f"Task {i}."} for i, row in enumerate(rows)]
    unknown = [{**row, "reward": float("nan")} for row in rows]
    for name, log, messages in (
        ("alone", alone, ("expected several rollouts with a reward to one prompt", "--map group=COLUMN")),
        ("unknown", unknown, ("expected rewards that are numbers, found none of 40", "--map reward=COLUMN")),
        ("equal", [{**row, "reward": 1.0} for row in rows], ("expected a group with rewards that differ",)),
    ):
        _, errors = check(write(f"{name}.jsonl", log), "--pairs", pairs, "--model", "organism", "--name", name, code=2)
        assert len(errors.splitlines()) == 1
        assert all(message in errors for message in messages), errors
        assert "--env" not in errors
        assert not (out / "pools" / name).exists()
    score = write("score.jsonl", [{name.replace("reward", "score"): row[name] for name in row} for row in rows])
    _, errors = check(score, "--pairs", pairs, "--model", "organism", "--map", "reward=scoer", code=2)
    assert len(errors.splitlines()) == 1, "what follows from a wrong name is no fault of its own"
    assert "did you mean score?" in errors


def test_faults_of_pairs_come_before_the_weights(write, out: Path, probe, refused, monkeypatch) -> None:
    """In every verb that extracts: all of them, those that only the tokenizer sees included."""
    monkeypatch.setattr("probe.runs.policies.load_policy", None)
    rows = three_keys()
    early_end = write("ended.jsonl", [{**rows[0], "hack": "a<|im_end|>b"}, *rows[1:]])
    wrong = write("wrong.jsonl", [{**rows[0], "hack": 1}, {**rows[1], "clean": 2}, *rows[2:]])
    for verb in (["extract"], ["replay", "--replay-dirs", "teacher"]):
        for path, words in ((early_end, ["'<|im_end|>' in it"]), (wrong, ["line 1 hack", "line 2 clean"])):
            _, errors = probe(*verb, "--pairs", path, "--name", "never", code=2)
            assert all(word in errors for word in words), errors
    line = refused("extract", "--pairs-map", "hack=a,clean=b", "--name", "never")
    assert line.startswith("--pairs-map: expected a file of pairs")
    assert not (out / "runs" / "never").exists()
