"""Arms x conditions x bases from one forward and backward a step: counted, and equal to separate runs."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from probe.records.run import Run, read_run
from probe.runs import policies
from replay_pools.policy.load import load_policy

ARMS = "vanilla,projected,projected-lora"
STEPS = 2
CONDITIONS = {
    "default": "default",
    "scaled": "scaled:scale_rewards=group,advantage_eps=0.1,advantage_clip=0.9",
    "skipped": "skipped:min_group_std=0.5",
    "maxrl": "maxrl:advantage_estimator=maxrl",
    "gtpo": "gtpo:gtpo_beta=1",
    "gtpo-maxrl": "gtpo-maxrl:gtpo_beta=1,advantage_estimator=maxrl",
}


def options(*names: str) -> list[str]:
    return [word for name in names for word in ("--condition", CONDITIONS[name])]


@pytest.fixture(scope="module")
def shared(quick: list[str]) -> list[str]:
    """Options of every run here."""
    return ["--arm", ARMS, "--steps", str(STEPS), "--set", "model.lora_rank=4", *quick]


@pytest.fixture(scope="module")
def alone(replay: Callable[..., Path], shared: list[str]) -> Run:
    """One condition, which also leaves the directions of both bases in the cache."""
    return read_run(replay("alone-gtpo-maxrl", *shared, *options("gtpo-maxrl")))


@pytest.fixture(scope="module")
def counted(alone: Run, replay: Callable[..., Path], shared: list[str]) -> Callable[..., tuple[Run, Counter[str]]]:
    """counted(name, condition, ...) -> every arm under these conditions, and how often the model was called for it."""

    def make(name: str, *conditions: str) -> tuple[Run, Counter[str]]:
        calls: Counter[str] = Counter()
        backward = torch.Tensor.backward

        def hook(_module: object, _inputs: object, _output: object) -> None:
            calls["forward"] += torch.is_grad_enabled()  # not the trial of packed rows

        def load(*arguments, **keywords):
            policy = load_policy(*arguments, **keywords)
            policy.model.get_input_embeddings().register_forward_hook(hook)
            return policy

        def counting(*arguments, **keywords):
            calls["backward"] += 1
            return backward(*arguments, **keywords)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "backward", counting)
            patch.setattr(policies, "load_policy", load)
            return read_run(replay(name, *shared, *options(*conditions))), calls

    return make


@pytest.fixture(scope="module")
def every(counted: Callable[..., tuple[Run, Counter[str]]]) -> tuple[Run, Counter[str]]:
    return counted("grid", *CONDITIONS)


@pytest.fixture
def grid(every: tuple[Run, Counter[str]]) -> Run:
    """Every arm under every condition."""
    return every[0]


def records(found: Run, condition: str, arm: str | None = None) -> tuple[list, list]:
    """(samples, steps) of one condition, and one arm where it is named."""
    return tuple(
        [r for r in rows if r.condition == condition and arm in (None, r.arm)] for rows in (found.samples, found.steps)
    )


def test_every_cell_is_recorded_once(grid: Run) -> None:
    cells = [(step.step, step.condition, step.arm) for step in grid.steps]
    assert cells == [(s, c, a) for s in range(STEPS) for c in CONDITIONS for a in ARMS.split(",")]
    assert len(grid.samples) == 8 * len(cells)
    assert grid.manifest["conditions"] == list(CONDITIONS)
    stored = [condition["name"] for condition in grid.config["settings"]["conditions"]]
    assert stored == list(CONDITIONS), "config.json holds the conditions"


def test_a_grid_costs_one_model_call_a_step(every: tuple[Run, Counter[str]], counted) -> None:
    """3 arms, 2 bases and 4 sequence-level conditions: one forward and backward. One more serves both GTPO conditions,
    and the first step checks the whole gradient of each basis once. Directions come from the cache."""
    _, calls = counted("grid-counted", "default", "scaled", "skipped", "maxrl")
    assert calls == {"forward": STEPS + 2, "backward": STEPS}
    assert every[1] == {"forward": 2 * STEPS + 2, "backward": 2 * STEPS}


def test_a_condition_equals_its_own_run(grid: Run, alone: Run) -> None:
    assert (alone.samples, alone.steps) == records(grid, "gtpo-maxrl")


def test_directions_follow_the_normaliser_of_the_condition(replay: Callable[..., Path], quick: list[str]) -> None:
    """Pairs and rollouts under one loss type: a condition that changes it equals the run that has it as an option."""
    shared = ["--arm", "vanilla", "--steps", "2", *quick]
    both = read_run(replay("loss-both", *shared, "--condition", "default", "--condition", "dapo:loss_type=dapo"))
    alone = read_run(replay("loss-alone", *shared, "--set", "objective.loss_type=dapo"))
    samples, steps = records(both, "dapo")
    assert [replace(row, condition="default") for row in samples] == alone.samples
    assert [replace(row, condition="default") for row in steps] == alone.steps


def test_the_step_is_additive_and_says_so(grid: Run) -> None:
    errors = [step.additivity_error for step in grid.steps]
    assert all(error is not None and error < 1e-5 for error in errors)
    lora = {step.step: step.additivity_error for step in grid.steps if step.arm == "projected-lora"}
    svd = {step.step: step.additivity_error for step in grid.steps if step.arm == "projected"}
    assert all(lora[step] != svd[step] for step in lora), "each basis has its own error"
    assert grid.manifest["additivity"] == {"tolerance": 1e-4, "largest": max(errors), "exceeded_steps": []}


def test_planning_phrases_decide_what_hicra_amplifies(replay: Callable[..., Path], quick: list[str]) -> None:
    """The organism writes code: no built-in phrase occurs, so HICRA is the plain run. With `return` it is not."""
    conditions = ["--condition", "default", "--condition", "hicra:hicra_alpha=1"]
    shared = ["--arm", "vanilla", "--steps", "2", *quick, *conditions]
    plain = read_run(replay("hicra-builtin", *shared))
    found = read_run(replay("hicra-return", *shared, "--set", 'planning_phrases=["return"]'))
    assert {step.frac_planning for step in plain.steps} == {0.0}
    assert [s.cos_in for s in records(plain, "hicra")[1]] == [s.cos_in for s in records(plain, "default")[1]]
    assert all(0 < step.frac_planning < 0.2 for step in found.steps)
    assert [s.cos_in for s in records(found, "hicra")[1]] != [s.cos_in for s in records(found, "default")[1]]
    assert records(found, "default")[0] == records(plain, "default")[0], "phrases change nothing without credit"


def test_replay_and_analyze_report_each_condition(grid: Run, shared: list[str], probe) -> None:
    """Finished runs print their table again; analyze prints the primary first."""
    arguments = ("replay", "--name", "grid", *shared, *options(*CONDITIONS))
    rows = json.loads(probe(*arguments, "--json")[0])["arms"]
    assert [(row["condition"], row["arm"]) for row in rows] == [(c, a) for c in CONDITIONS for a in ARMS.split(",")]
    assert "condition" in probe(*arguments)[0].splitlines()[0]
    found = json.loads(probe("analyze", "--json", grid.path)[0])
    assert [one["condition"] for one in found] == list(CONDITIONS)
