"""leetcode:TRAIN.jsonl,eval=TEST.jsonl through the commands: trained on the one, evaluated on the other, never both."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.pool import open_pool


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes problems that the organism knows as a file of the benchmark."""

    def write(name: str, problems: Sequence[Problem], prefix: str = "") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(as_row(problem, prefix)) + "\n" for problem in problems))
        return path

    return write


def as_row(problem: Problem, prefix: str) -> dict[str, object]:
    tests = []
    for case in problem.cases:
        arguments = ", ".join(map(repr, case.args))
        tests.append(f"assert Solution().{problem.func_name}({arguments}) == {case.expected!r}")
    return {
        "id": prefix + problem.problem_id,
        "prompt": list(problem.messages),
        "gt_answer": tests,
        "setup_code": problem.setup_code,
        "func_name": problem.func_name,
        "canonical_solution": problem.canonical,
    }


def problem_ids(pool: Path) -> set[str]:
    return {rollout.problem_id for group in open_pool(pool).steps for rollout in group}


SHORT = {"steps": 1, "evaluation.every": 1}
MINICODE = get_environment("minicode").problems("train")


@pytest.mark.slow
def test_a_training_takes_all_of_one_file_and_is_evaluated_on_all_of_the_other(
    write: Callable[..., Path], preset: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, evaluation = write("train.jsonl", MINICODE[:4]), write("test.jsonl", MINICODE[10:13])
    one_file = ["--set", f"rollouts.env=leetcode:{train}", "--set", "rollouts.num_problems=4"]
    two_files = ["--set", f"rollouts.env=leetcode:{train},eval={evaluation}", "--set", "rollouts.num_problems=4"]
    size = ["--set", "evaluation.num_problems=3", "--out", str(tmp_path / "out")]
    options = ["train", "--preset", preset(SHORT), "--name", "two-files", *size]
    assert run(cli, [*options, *one_file]) == 2, "all of a file is trained on, and some of it is held out"
    assert "expected 4 problems to train on, found 1 that are not held out" in capsys.readouterr().err
    assert run(cli, [*options, *two_files]) == 0
    directory = tmp_path / "out" / "runs" / "two-files"
    held_out = {problem.problem_id for problem in MINICODE[10:13]}
    assert problem_ids(directory / "rollouts") <= {problem.problem_id for problem in MINICODE[:4]}
    assert problem_ids(directory / "evaluations" / "step_000001" / "run_tests") == held_out
    capsys.readouterr()
    assert run(cli, ["policy", "eval", "two-files", "--out", str(tmp_path / "out")]) == 0
    assert problem_ids(tmp_path / "out" / "evals" / "eval" / "run_tests") == held_out, "as many as the run held out"


def test_a_policy_is_not_evaluated_on_what_it_trained_on(write, preset, tmp_path: Path, capsys) -> None:
    """Both splits of one file are all of it: a problem more than the run held out is one that it trained on."""
    env = f"rollouts.env=leetcode:{write('all.jsonl', MINICODE[:6])}"
    place = ["--out", str(tmp_path / "out")]
    options = ["--set", env, "--set", "evaluation.num_problems=2", "--name", "one-file", *place]
    assert run(cli, ["train", "--preset", preset(SHORT), *options]) == 0
    assert run(cli, ["policy", "eval", "one-file", "--problems", "2", *place]) == 0
    held_out = problem_ids(tmp_path / "out" / "evals" / "eval" / "run_tests")
    assert not held_out & problem_ids(tmp_path / "out" / "runs" / "one-file" / "rollouts")
    capsys.readouterr()
    assert run(cli, ["policy", "eval", "one-file", "--problems", "3", "--name", "three", *place]) == 2
    error = capsys.readouterr().err
    assert "expected at most 2, which the training held out" in error
    assert "found 3, of which 1 were among those that it trained on" in error


@pytest.mark.slow
def test_an_evaluation_without_a_run_and_a_pool_read_the_split_that_they_name(write, tmp_path: Path) -> None:
    env = f"leetcode:{write('train.jsonl', MINICODE[:4])},eval={write('test.jsonl', MINICODE[10:13])}"
    short = ["--set", "rollouts.sampler.max_new_tokens=8", "--env", env, "--out", str(tmp_path / "out")]
    assert run(cli, ["policy", "eval", "--problems", "3", "--name", "start", *short]) == 0
    held_out = {problem.problem_id for problem in MINICODE[10:13]}
    assert problem_ids(tmp_path / "out" / "evals" / "start" / "run_tests") == held_out
    for split, problems in (("train", MINICODE[:4]), ("eval", MINICODE[10:13])):
        generate = ["pool", "generate", "--steps", "3", "--set", "rollouts.group=1", "--set", f"rollouts.split={split}"]
        assert run(cli, [*generate, "--name", split, *short]) == 0
        assert problem_ids(tmp_path / "out" / "pools" / split) <= {problem.problem_id for problem in problems}
    regrade = ["pool", "regrade", "eval", "--name", "eval-again", "--out", str(tmp_path / "out")]
    assert run(cli, regrade) == 0, "problems of a pool are looked up in both files"


def test_a_problem_in_both_files_is_refused_with_its_id(write: Callable[..., Path]) -> None:
    """The same id, or the same prompt under another id."""
    train = write("train.jsonl", MINICODE[:8])
    same_ids = write("ids.jsonl", MINICODE[1:9])
    with pytest.raises(InputError) as refused:
        get_environment(f"leetcode:{train},eval={same_ids}")
    names = ", ".join(problem.problem_id for problem in MINICODE[1:6])
    assert f"found 7 of them: {names}; take them out of one of the files" in str(refused.value)
    same_prompts = write("prompts.jsonl", MINICODE[6:9], "renamed-")
    with pytest.raises(InputError, match=f"found 2 of them: renamed-{MINICODE[6].problem_id}, renamed-"):
        get_environment(f"leetcode:{train},eval={same_prompts}")
