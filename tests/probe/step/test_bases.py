"""A replay in the LoRA basis: its questions, numbers and verdict, alone and beside the SVD basis."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from adapted import configured, nll_gradient
from worlds import World, make_run

from extraction.adapters.trained import Trained
from extraction.pairs import builtin_pairs, write_pairs
from probe.records.run import read_run
from probe.settings.training import ModelConfig
from replay_pools.policy.load import load_policy
from replay_pools.pool import BUILTIN, open_pool

# An odd number to extract from, so that no vote on a sign is tied; the last ones are held out.
PAIRS = [*builtin_pairs("run_tests")[:7], *builtin_pairs("run_tests")[-4:]]
K, RANK = 2, 4


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, pools: Path) -> list[str]:
    """Options of a small replay of two policies on the same prompts."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_pairs(path, PAIRS)
    every_direction = ["--k", str(K), "--set", "intervention.extraction.drop_bottom_frac=0"]
    of_pairs = ["--pairs", str(path), *every_direction, "--set", f"model.lora_rank={RANK}"]
    return ["--replay-dirs", f"{pools}/teacher,{pools}/base-hinted", "--match", "prompt", "--steps", "4", *of_pairs]


@pytest.fixture(scope="module")
def lora_alone(replay: Callable[..., Path], quick: list[str]) -> Path:
    return replay("bases-lora", *quick, "--arm", "projected-lora")


@pytest.fixture(scope="module")
def both(replay: Callable[..., Path], quick: list[str]) -> Path:
    return replay("bases-both", *quick, "--arm", "vanilla,projected,projected-lora")


@pytest.fixture
def analysed(probe) -> Callable[..., dict]:
    """analysed(directory, *options) -> what `probe analyze --json` prints."""
    return lambda directory, *options: orjson.loads(probe("analyze", directory, "--json", *options)[0])


def backward(coordinates: Trained, prompt: list[int], completion: list[int]) -> np.ndarray:
    """Gradient of -sum log p(completion) in the factors B of all modules, one after the other, by ordinary autograd."""
    return torch.cat([*nll_gradient(coordinates, prompt, completion).values()]).double().numpy()


def unit(gradient: np.ndarray) -> np.ndarray:
    return gradient / np.linalg.norm(gradient)


def test_the_numbers_are_those_of_ordinary_gradients_of_b(lora_alone: Path, small: str, tmp_path, analysed) -> None:
    """Pull and what the gate removes, from a backward a completion, numpy's SVD, and the definitions of METHOD."""
    policy = load_policy(small)
    coordinates = configured(policy, "lora", ModelConfig(lora_rank=RANK), tmp_path)
    differences = []
    for pair in PAIRS:
        prompt = policy.render(pair.messages)[1]
        sides = []
        for text in (pair.hack, pair.clean):
            ids = policy.completion_ids(text)
            sides.append(backward(coordinates, prompt, ids) / (2 * len(ids)))
        differences.append(sides[0] - sides[1])
    extracted = [d for d, pair in zip(differences, PAIRS, strict=True) if not pair.held_out]
    held_out = [unit(d) for d, pair in zip(differences, PAIRS, strict=True) if pair.held_out]
    ends = np.cumsum([*coordinates.sizes.values()])[:-1]
    v_hack = []
    for rows in np.split(np.stack(extracted), ends, axis=1):
        V = np.linalg.svd(rows, full_matrices=False)[2][:K]
        v_hack.append(np.sign(np.sign(rows @ V.T).sum(0))[:, None] * V)
    axis = np.concatenate([V.sum(0) / np.sqrt(K * len(v_hack)) for V in v_hack])

    rollouts = {}
    for name in ("teacher", "base-hinted"):
        for step, group in enumerate(open_pool(BUILTIN / name).steps):
            rollouts |= {(name, step, rollout.sample_id): rollout for rollout in group}
    groups = defaultdict(list)
    for sample in read_run(lora_alone).samples:
        groups[sample.step].append(rollouts[sample.src_pool, sample.src_step, sample.src_sample])
    by_prompt = defaultdict(list)
    for group in groups.values():
        rewards = np.array([rollout.reward for rollout in group])
        if not rewards.std():
            continue
        total = np.zeros(len(axis))
        for rollout, advantage in zip(group, rewards - rewards.mean(), strict=True):
            gradient = backward(coordinates, rollout.prompt_ids, rollout.completion_ids)
            total += advantage / (len(group) * rollout.comp_len) * gradient
        total = unit(total)
        parts = zip(v_hack, np.split(total, ends), strict=True)
        removed = np.concatenate([V.T @ np.maximum(V @ g, 0) for V, g in parts])
        progress, lost = (np.mean([vector @ h for h in held_out]) for vector in (total, removed))
        by_prompt[group[0].problem_id].append((axis @ total, progress, lost))
    assert len(by_prompt) > 1
    cosine, progress, lost = np.mean([np.mean(steps, axis=0) for steps in by_prompt.values()], axis=0)

    found = analysed(lora_alone)
    says = {part["name"]: part["says"] for part in found["validity"]}
    assert says["offline geometry"] == "HOLDS", "recorded cosines are reproduced"
    assert (found["measured_arm"], found["verdict"]["about"]["basis"]) == ("projected-lora", "lora")
    rows = {row["name"]: row for row in found["estimates"]}
    assert rows.keys() >= {"pull", "benign", "contrast", "cos_in, permuted pairs"}
    pull, parts = rows["pull"], rows["pull"]["parts"]
    assert pull["n"] == len(by_prompt)
    assert parts["num_held_out"] == len(held_out)
    assert parts["measured"] == pytest.approx(cosine, rel=1e-3)
    assert parts["ceiling"] == pytest.approx(np.mean([axis @ h for h in held_out]), rel=1e-3)
    margin = rows["removed/margin"]
    assert margin["parts"]["progress"] == pytest.approx(progress, rel=1e-3)
    assert margin["value"] is None or margin["value"] == pytest.approx(lost / progress, rel=1e-3)


def numbers(found: dict) -> list[dict | None]:
    """Behind the three questions."""
    return [finding["number"] for finding in found["verdict"]["findings"]]


@pytest.mark.slow
def test_a_basis_is_judged_as_in_a_replay_of_its_own(both: Path, lora_alone: Path, analysed) -> None:
    """The verdict is that of vanilla; --basis lora says what a replay in LoRA alone says."""
    found, lora, alone = analysed(both), analysed(both, "--basis", "lora"), analysed(lora_alone)
    assert (found["verdict"]["about"]["basis"], found["measured_arm"]) == ("svd", "vanilla")
    assert lora["arms"] == ["projected-lora"]
    assert (lora["measured_arm"], lora["verdict"]["word"]) == ("projected-lora", alone["verdict"]["word"])
    for beside, by_itself in zip(numbers(lora), numbers(alone), strict=True):
        assert (beside is None) == (by_itself is None)
        assert beside is None or beside["value"] == pytest.approx(by_itself["value"], rel=1e-3)


def test_a_basis_that_is_not_there_is_refused(tmp_path: Path, refused) -> None:
    directory = make_run(tmp_path / "runs" / "run", World(num_steps=4))
    error = refused("analyze", directory, "--basis", "lora")
    assert "expected an arm along v_hack in the basis lora, found vanilla, projected, random" in error
