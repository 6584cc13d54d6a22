"""What trainings and evaluations share, by the commands: files of problems, never both for one, and the grader."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
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
def test_a_training_takes_all_of_one_file_and_is_evaluated_on_all_of_the_other(write, preset, out: Path, probe) -> None:
    train, evaluation = write("train.jsonl", MINICODE[:4]), write("test.jsonl", MINICODE[10:13])
    sizes = ("--set", "rollouts.num_problems=4", "--set", "evaluation.num_problems=3")
    options = ("train", "--preset", preset(SHORT), "--name", "two-files", *sizes, "--set")
    # All of a file is trained on, and some of it is held out.
    _, errors = probe(*options, f"rollouts.env=leetcode:{train}", code=2)
    assert "expected 4 problems to train on, found 1 that are not held out" in errors
    probe(*options, f"rollouts.env=leetcode:{train},eval={evaluation}")
    directory, held_out = out / "runs" / "two-files", {problem.problem_id for problem in MINICODE[10:13]}
    assert problem_ids(directory / "rollouts") <= {problem.problem_id for problem in MINICODE[:4]}
    assert problem_ids(directory / "evaluations" / "step_000001" / "run_tests") == held_out
    probe("policy", "eval", "two-files", "--name", "of-two-files")
    assert problem_ids(out / "evals" / "of-two-files" / "run_tests") == held_out, "as many as the run held out"


def test_a_policy_is_not_evaluated_on_what_it_trained_on(write, preset, out: Path, probe, refused) -> None:
    """Both splits of one file are all of it: a problem more than the run held out is one that it trained on."""
    env = f"rollouts.env=leetcode:{write('all.jsonl', MINICODE[:6])}"
    options = ("--set", env, "--set", "evaluation.num_problems=2", "--name", "one-file")
    probe("train", "--preset", preset(SHORT), *options)
    evaluate = ("policy", "eval", "one-file", "--name", "of-one-file", "--problems")
    probe(*evaluate, "2")
    held_out = problem_ids(out / "evals" / "of-one-file" / "run_tests")
    assert not held_out & problem_ids(out / "runs" / "one-file" / "rollouts")
    error = refused(*evaluate, "3")
    assert "expected at most 2, which the training held out" in error
    assert "found 3, of which 1 were among those that it trained on" in error


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


def test_train_and_eval_grade_as_the_settings_say(out: Path, preset: Callable[..., str], refused, probe) -> None:
    """Rule and limit reach every pool of both verbs, and neither may change in a run or an evaluation that goes on."""
    settings = {"rollouts.code_rule": "joined", "rollouts.cpu_limit": 6, "steps": 1, "evaluation.num_problems": 1}
    evaluate = ("policy", "eval", "--name", "ruled", "--problems", "1", "--rollouts", "1")
    evaluate += ("--set", "rollouts.cpu_limit=6", "--set")
    probe("train", "--name", "ruled", "--preset", preset(settings))
    probe(*evaluate, "rollouts.code_rule=joined")
    for folder in ("runs", "evals"):
        manifests = [read_json(path) for path in (out / folder / "ruled").rglob("manifest.json")]
        graders = [manifest["grader"] for manifest in manifests if "grader" in manifest]
        assert graders
        assert {(grader["code_rule"], grader["cpu_s"]) for grader in graders} == {("joined", 6)}
    (out / "runs" / "ruled" / "manifest.json").unlink()
    for changed in ({"rollouts.code_rule": "solution"}, {"rollouts.cpu_limit": 7}):
        assert next(iter(changed)) in refused("train", "--name", "ruled", "--preset", preset(settings | changed))
    expected = "grader.code_rule: expected 'solution', found 'joined'"
    assert expected in refused(*evaluate, "rollouts.code_rule=solution")
