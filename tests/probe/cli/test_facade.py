"""import probe: the names of Python do what the commands do, to the same bytes; their examples run."""

import copy
import doctest
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest
import torch
from adapted import adapt
from directories import contents
from peft import LoraConfig, get_peft_model
from tiny_models import VOCABULARY, build_model
from torch import Tensor

import probe
from extraction.directions import Directions, haar_directions
from extraction.pairs import builtin_pairs
from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.errors import InputError
from replay_pools.policy.adapters import quiet_peft
from replay_pools.policy.load import load_policy

# Each uses what came before.
EXAMPLES = ("load", "extract", "Direction", "cosines", "attach", "replay", "read_run", "analyze")


def silent(_text: str) -> None:
    """Of cautions, which the commands print."""


@pytest.fixture(scope="module")
def direction(out: Path, small: str, few_pairs: list[str]) -> probe.Direction:
    return probe.extract(small, pairs=few_pairs[1], k=2, out=out, say=silent)


def test_a_replay_writes_what_the_command_writes(
    out: Path, small: str, pools: Path, few_pairs: list[str], replay: Callable[..., Path], direction: probe.Direction
) -> None:
    """Every file, along a direction that `probe.extract` saved and `probe extract` saves again, to the same bytes."""
    arms = ("vanilla", "projected", "random")
    assert direction.save("from-python", out) == out / "directions" / "from-python.safetensors"
    assert run(cli, ["extract", "--model", small, *few_pairs, "--name", "from-shell", "--out", str(out)]) == 0
    names = [path.name for path in (out / "directions").glob("from-shell.*")]
    assert len(names) == 3
    for name in names:
        ours, theirs = (out / "directions" / name.replace("shell", who) for who in ("python", "shell"))
        if not name.endswith("json"):  # a card has the name of its file
            assert ours.read_bytes() == theirs.read_bytes(), name
    settings = {"intervention.extraction.k": 2}
    both = [pools / "teacher", pools / "base"]
    made = probe.replay(
        both, arms=arms, direction="from-python", steps=2, name="python", out=out, settings=settings, say=silent
    )
    assert repr(made).startswith(f"Run('{out}/runs/python', 6 steps")
    options = ["--replay-dirs", ",".join(map(str, both)), "--arm", ",".join(arms), "--steps", "2", "--k", "2"]
    theirs = contents(replay("shell", *options, "--v-hack", "from-python"))
    assert contents(out / "runs" / "python") == theirs
    again = contents(replay("twice", *options, "--v-hack", "from-shell"))
    assert {name for name in theirs if theirs[name] != again[name]} <= {"config.json", "manifest.json"}, "its name"
    assert probe.analyze(str(made.path)).verdict.word == probe.analyze(made).verdict.word


def test_a_model_in_memory_is_extracted_from_and_stays_as_it_is(
    out: Path, small: str, direction: probe.Direction
) -> None:
    """The same directions as of its name; it still trains, without an adapter. Rows are pairs as those of a file."""
    policy = load_policy(small)
    model = policy.model.train().requires_grad_(True)
    before = {name: (value.clone(), value.requires_grad) for name, value in model.named_parameters()}
    pairs = builtin_pairs("run_tests")[:4]
    rows = [{"prompt": one.messages, "hack": one.hack, "clean": one.clean, "held_out": False} for one in pairs]
    found = probe.extract(model, policy.tokenizer, rows, k=2, out=out, say=silent)
    for module, V in direction.vectors.items():
        assert torch.equal(found.vectors[module], V), module
    assert model.training
    assert [*dict(model.named_parameters())] == [*before]
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name][0]), name
        assert value.requires_grad == before[name][1], name
    assert len(repr(found)) < 200
    with pytest.raises(InputError, match="tokenizer"):
        probe.extract(model, pairs="builtin", out=out)
    with pytest.raises(InputError, match="expected letters, digits"):
        found.save("../elsewhere", out)


def slow_cosines(
    model: Any, samples: list[tuple[list[int], list[int]]], directions: Directions, layers: dict[str, Any]
) -> Tensor:
    """A backward a sample of (ids, labels), dL/dW of every module, and the formula of METHOD by numpy's SVD."""
    found = []
    for sample in samples:
        model.zero_grad()
        ids, labels = torch.tensor(sample)
        logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        (-logprobs[labels[1:] != -100].sum()).backward()
        dot, square = 0.0, 0.0
        for module, V in directions.vectors.items():
            U, Vh = layers[module]
            gradient = dict(model.named_parameters())[f"{module}.weight"].grad
            g = torch.einsum("or,oi,ri->r", U, gradient, Vh)
            dot += float((V.double() @ g).sum() / len(V) ** 0.5)
            square += float(g.square().sum())
        found.append(dot / (len(directions.vectors) * square) ** 0.5)
    return torch.tensor(found, dtype=torch.float64)


def test_cosines_are_those_of_a_slow_backward_a_sample() -> None:
    """In float64, of ragged samples with padding on either side, and with a LoRA around the weights of the directions.

    Labels have holes: one turn, two turns, all but the first token (which has a label that counts nowhere), the last
    token masked. The model keeps its flags and gets no gradient.
    """
    generator = torch.Generator().manual_seed(3)
    samples = []
    for length, is_scored in ((11, range(7, 11)), (12, (3, 4, 8, 9, 11)), (7, range(7)), (6, (4,))):
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        samples.append((ids, [token if t in is_scored else -100 for t, token in enumerate(ids)]))
    coordinates = adapt(build_model("llama", torch.float64), basis="svd", model_id="tiny", cache_dir=None)
    like = Directions(
        vectors={module: torch.zeros(2, r) for module, r in coordinates.sizes.items()},
        singular_values={},
        votes={},
        metadata={"fingerprint": coordinates.start.fingerprint},
    )
    directions = haar_directions(like, seed=5)
    layers = {module: layer.frames() for module, layer in coordinates.layers.items()}
    model = build_model("llama", torch.float64)
    expected = slow_cosines(model, samples, directions, layers)
    width = max(len(ids) for ids, _ in samples)
    for left in (True, False):
        batch = {name: torch.full((len(samples), width), fill) for name, fill in (("input_ids", 2), ("labels", -100))}
        batch["attention_mask"] = torch.zeros(len(samples), width, dtype=torch.long)
        for row, sample in enumerate(samples):
            own = slice(width - len(sample[0]), width) if left else slice(len(sample[0]))
            batch["input_ids"][row, own], batch["labels"][row, own] = torch.tensor(sample)
            batch["attention_mask"][row, own] = 1
        model.zero_grad()
        found = probe.cosines(model, batch, directions, cache_dir=None)
        assert (found - expected).abs().max() < 1e-9
        assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    with quiet_peft():
        adapted = get_peft_model(model, LoraConfig(target_modules="all-linear", r=2, init_lora_weights=False)).double()
        moved = copy.deepcopy(adapted).merge_and_unload().requires_grad_(True)
    found = probe.cosines(adapted, batch, directions, cache_dir=None)
    assert (found - slow_cosines(moved, samples, directions, layers)).abs().max() < 1e-9
    assert (found - expected).abs().max() > 1e-3, "the adapter changes nothing"
    longest = {name: batch[name][1:2] for name in ("input_ids", "labels")}  # no padding, and so no mask
    assert (probe.cosines(adapted, longest, directions, cache_dir=None) - found[1:2]).abs().max() < 1e-9
    gap = batch["attention_mask"].clone()
    gap[1, 5] = 0
    packed = torch.arange(width) % 6
    for wrong, where in (
        ({"labels": batch["labels"].roll(1, 1)}, "batch labels"),
        ({"labels": batch["input_ids"]}, "batch labels"),  # of padding too
        ({"labels": torch.full_like(batch["labels"], -100)}, "sample 0"),
        ({"labels": batch["labels"][:, 1:]}, "batch"),
        ({"attention_mask": gap}, "batch"),
        ({"attention_mask": batch["attention_mask"] * (1 + packed // 3)}, "batch"),  # numbers of documents in a row
        ({"position_ids": packed.expand_as(gap)}, "batch"),
        ({"position_ids": batch["attention_mask"].cumsum(1)}, "batch"),  # from 1
        ({"completion_mask": gap}, "batch"),
    ):
        with pytest.raises(InputError) as refused:
            probe.cosines(adapted, batch | wrong, directions, cache_dir=None)
        assert refused.value.where == where, wrong


def test_a_direction_travels(out: Path, small: str, few_pairs: list[str], direction: probe.Direction) -> None:
    """What comes back from a file is what was saved; others do not overwrite it."""
    path = direction.save("travels", out)
    for found in (probe.Direction.load("travels", out), probe.Direction.load(path)):
        assert found.metadata == direction.metadata
        assert found.held_out() == direction.held_out()
        assert repr(found) == repr(direction)
        for module, V in direction.vectors.items():
            assert torch.equal(found.vectors[module], V)
    other = probe.extract(small, pairs=few_pairs[1], k=1, out=out, say=silent)
    with pytest.raises(InputError, match="the same directions"):
        other.save("travels", out)
    policy, rows = load_policy(small), [{"prompt": "Add.", "completion": text} for text in ("3", "exit()")]
    found = probe.cosines(policy, rows, direction, cache_dir=None)
    assert torch.equal(probe.cosines(policy, polars.DataFrame(rows), direction, cache_dir=None), found)


def test_what_python_was_not_told_is_said_in_python(out: Path) -> None:
    """All at once where the rows are sound; a mapping that is turned round is no mapping."""
    rows = [{"prompt": "Add.", "completion": str(i), "reward": float(i % 2), "bad": i < 2} for i in range(4)]
    with pytest.raises(InputError) as error:
        probe.check(rows, out=out, say=silent)
    assert ["pairs" in str(one) or "model" in str(one) for one in error.value.errors] == [True, True]
    for mapping in ({"bad": "hacked"}, {"hackd": "bad"}):
        with pytest.raises(InputError, match="expected a target"):
            probe.check(rows, "builtin", "organism", mapping=mapping, out=out, say=silent)
    assert error.value.__cause__ is None


LOADS = """
import sys, probe
policy = probe.load(sys.argv[1], out=sys.argv[2])
print(policy.adapter, sum(float(p.abs().sum()) for p in policy.model.parameters()))
"""


@pytest.fixture(scope="module")
def left(out: Path, preset: Callable[..., str]) -> Path:
    """A finished training."""
    options = ["--preset", preset({"steps": 1, "evaluation.every": 9}), "--name", "left", "--out", str(out)]
    assert run(cli, ["train", *options]) == 0
    return out / "runs" / "left"


@pytest.mark.slow
def test_a_training_is_loaded_in_a_fresh_interpreter(left: Path, out: Path) -> None:
    """Where nothing has taught peft its adapter; by its name as by its path; what is no finished training says so."""
    command = [sys.executable, "-c", LOADS, "left", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=out)
    assert done.returncode == 0, done.stderr
    adapter, total = done.stdout.split()
    assert adapter == str(left / "adapter")
    loaded = probe.load(left, device="cpu")
    assert float(total) == sum(float(p.abs().sum()) for p in loaded.model.parameters())
    shutil.move(left / "adapter", left / "gone")
    with pytest.raises(InputError, match="adapter_config"):
        probe.load("left", out=out)
    shutil.move(left / "gone", left / "adapter")


@pytest.mark.slow  # of what they call, on the organism
def test_the_examples_run(tmp_path: Path, common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every docstring has one, in an empty folder, with names alone."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cache").symlink_to(common / "cache")
    monkeypatch.chdir(tmp_path)
    for name in EXAMPLES:
        (tests,) = (
            test
            for test in doctest.DocTestFinder(recurse=False).find(getattr(probe, name), name, globs={"probe": probe})
            if test.examples
        )
        said: list[str] = []
        assert doctest.DocTestRunner().run(tests, out=said.append).failed == 0, "".join(said)
