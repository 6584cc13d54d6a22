"""Several ranks are one run: replay byte for byte, training up to rounding, killed and resumed like never killed."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import orjson
import processes
import psutil
import pytest
import torch
from directories import contents
from hypothesis import given
from hypothesis import strategies as st
from processes import command
from safetensors.torch import load_file

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.runs.train import train
from probe.settings.presets import configure
from probe.step.distributed import SOLO, World, joined
from replay_pools.base.errors import InputError
from replay_pools.pool import open_pool

# All that acts between steps: quarantine, moving reference, ratios, refreshed directions, teacher, dynamic sampling.
BETWEEN = {
    "steps": 4, "model.dtype": "float64", "rollouts.sampler.max_new_tokens": 12, "rollouts.iterations": 2,
    "rollouts.dynamic_sampling": 1, "rollouts.teacher.off_step": 2, "objective.old_logprobs": "recorded",
    "objective.beta": 0.05, "objective.reference": "ema", "control.ema_decay": 0.5, "optimizer.lr": 0.001,
    "intervention.arms": ["projected-at-deployment"], "intervention.refresh_every": 2, "evaluation.every": 4,
    "evaluation.num_problems": 1,
}  # fmt: skip


def finish(ranks: list[BaseProcess]) -> list[int | None]:
    """Their exit codes."""
    return [processes.finish(rank) for rank in ranks]


def wait_for(path: Path, alive: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert alive(), "finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def assert_alike(found: Path, expected: Path, **tolerance: float) -> None:
    """All records of two runs, equal but for rounding."""
    one, other = read_run(found), read_run(expected)
    pairs = [*zip(one.steps, other.steps, strict=True), *zip(one.samples, other.samples, strict=True)]
    for own, reference in pairs:
        row = own.to_json()
        for name, value in reference.to_json().items():
            about = pytest.approx(value, **tolerance) if isinstance(value, float) else value
            assert row[name] == about, f"step {own.step} {name}: a share is missing, or in another order"


@pytest.mark.slow  # beside two ranks of a training that are killed and resumed, below
def test_a_replay_that_lost_a_rank_is_resumed_by_three_to_the_bytes_of_one_process(out, few_pairs, replay) -> None:
    """torchrun ends all ranks when one dies by SIGKILL; the run is resumed by another number of them."""
    options = ["--arm", "vanilla", "--steps", "8", *few_pairs]
    whole = replay("of-one", *options)
    command_line = ["replay", "--name", "of-many", "--out", str(out), *options]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "probe"]
    agent = subprocess.Popen([*launcher, *command_line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    directory = out / "runs" / "of-many"
    wait_for(directory / "steps.jsonl", lambda: agent.poll() is None)
    os.kill(psutil.Process(agent.pid).children()[1].pid, signal.SIGKILL)
    assert agent.wait(300) != 0
    assert not (directory / "manifest.json").exists(), "a run that died must not look complete"
    assert finish(processes.start_ranks(3, command(*command_line))) == [0, 0, 0]
    assert contents(directory) == contents(whole)


@pytest.fixture(scope="module")
def between(preset: Callable[..., str]) -> str:
    """The file of these settings."""
    return preset(BETWEEN)


@pytest.fixture(scope="module")
def trained_by_two(out: Path, between: str) -> Path:
    """A run of two ranks that was never stopped."""
    command_line = command("train", "--preset", between, "--name", "two-processes", "--out", str(out))
    assert finish(processes.start_ranks(2, command_line)) == [0, 0]
    return out / "runs" / "two-processes"


def test_two_ranks_train_as_one_process_does(trained_by_two: Path, out: Path, between: str) -> None:
    """Same rollouts, token by token, and the same records and weights up to the order in which floats are added."""
    assert run(cli, ["train", "--preset", between, "--name", "one-process", "--out", str(out)]) == 0
    one = out / "runs" / "one-process"
    ids = [
        [[r.completion_ids for r in group] for group in open_pool(path / "rollouts").steps]
        for path in (trained_by_two, one)
    ]
    assert ids[0] == ids[1], "the noise of a rollout depends on who samples it"
    assert_alike(trained_by_two, one, rel=1e-9, abs=1e-7)  # additivity errors are themselves rounding
    evals = [orjson.loads(line) for line in (one / "evals.jsonl").read_bytes().splitlines()]
    for row, other in zip(evals, (trained_by_two / "evals.jsonl").read_bytes().splitlines(), strict=True):
        assert orjson.loads(other)["rates"] == row["rates"]
    mine, theirs = (load_file(path / "adapter" / "adapter_model.safetensors") for path in (trained_by_two, one))
    for module, value in theirs.items():
        torch.testing.assert_close(mine[module], value, rtol=1e-9, atol=1e-12)


def test_two_ranks_killed_by_sigkill_resume_to_the_same_bytes(trained_by_two: Path, out: Path, between: str) -> None:
    command_line = command("train", "--preset", between, "--name", "two-killed", "--out", str(out))
    ranks = processes.start_ranks(2, command_line)
    directory = out / "runs" / "two-killed"
    wait_for(directory / "checkpoint" / "step_000002.pt", ranks[0].is_alive)
    for rank in ranks:
        rank.kill()
    assert finish(ranks) == [-signal.SIGKILL] * 2
    assert not (directory / "manifest.json").exists()
    assert run(cli, ["train", "--preset", between, "--name", "two-killed", "--out", str(out)]) == 2, "by one rank"
    assert finish(processes.start_ranks(2, command_line)) == [0, 0]
    assert contents(directory) == contents(trained_by_two)


def check_sharded_base(model: str, cache: str) -> None:
    """In every rank: gradients, scores, additivity and samples with a sharded base are those without it.

    First of the base in both bases at once, then of an adapter that has moved it, in each. One rank needs a pass more
    than the other, so that they would wait for one another forever if each made its own.
    """
    from dataclasses import replace
    from pathlib import Path

    import torch
    from torch.distributed.tensor import DTensor

    from extraction.adapters.trained import Trained
    from extraction.batch import make_batch
    from probe.runs.policies import configured_frames
    from probe.settings.training import ModelConfig
    from probe.step.bases import Bases
    from probe.step.distributed import joined, shard_base
    from replay_pools.base.errors import InputError
    from replay_pools.policy.load import load_policy
    from replay_pools.pool import Sampler
    from replay_pools.sampling import LocalEngine

    prompts, completions = [[5, 6, 7], [8, 9], [10, 11, 12], [3, 4]], [[3, 4, 5], [6, 7], [5, 6, 9, 3], [9, 8, 7, 6, 5]]
    batch, found = make_batch(prompts, completions, pad_id=0), []

    def see(policy, bases):
        with bases.read():  # before any gradient: what is gathered then must serve later
            drawn = LocalEngine(policy).sample(prompts, Sampler(max_new_tokens=6), seeds=range(4))
        unit, errors = bases.run_checked(batch, turn=3, whole=True)
        assert {*errors} == {*unit.gradients}
        assert max(errors.values()) < 1e-4
        total = bases.total(torch.tensor([1.0, -2.0, 3.0, 0.5]), unit.gradients)
        found.append(([c.ids for c in drawn], total, unit.token_logprobs, bases.score(batch)))

    with joined("cpu", shards_base=True) as world:
        for sharded in (False, True):
            policy = load_policy(model)
            for block in policy.model.get_decoder().layers:
                for layer in (block.self_attn.q_proj, block.mlp.up_proj, block.mlp.down_proj):
                    layer.bias = torch.nn.Parameter(torch.linspace(-0.1, 0.1, layer.out_features))
            config = ModelConfig(lora_rank=4)
            frames = {basis: configured_frames(policy, basis, config, Path(cache)) for basis in ("svd", "lora")}
            bases = Bases(model=policy.model, frames=frames, tokens_per_batch=11)
            if sharded:
                shard_base(policy.model, "cpu")
                bases = replace(bases, world=world)
                assert any(isinstance(weight, DTensor) for weight in policy.model.parameters())
            see(policy, bases)
            for basis in frames:
                trained = Trained(policy.model, frames[basis])
                noise = torch.Generator().manual_seed(1)
                trained.load_values({m: 0.05 * torch.randn(r, generator=noise) for m, r in trained.sizes.items()})
                see(policy, replace(bases, frames={basis: frames[basis]}, trained=trained))
                trained.remove()
        for whole, parts in zip(found[:3], found[3:], strict=True):
            assert whole[0] == parts[0]
            for basis, gradients in whole[1].items():
                for module, value in gradients.items():
                    assert (parts[1][basis][module] - value).norm() <= 1e-4 * value.norm(), (basis, module)
            torch.testing.assert_close(parts[2:], whole[2:], rtol=1e-4, atol=1e-4)
        try:
            world.check_equal({"same": torch.ones(2), "other": torch.full((2,), 1.0 + world.rank)}, "coordinates")
        except InputError as error:
            assert str(error).startswith("coordinates, module other: expected the same bits")  # noqa: PT017
        else:
            raise AssertionError("ranks that have diverged went on")


def test_a_sharded_base_gives_the_same_gradients_and_samples(small: str, out: Path) -> None:
    source = textwrap.dedent(inspect.getsource(check_sharded_base))
    ranks = processes.start_ranks(2, f"{source}\ncheck_sharded_base({small!r}, {str(out / 'cache')!r})")
    assert finish(ranks) == [0, 0]


@given(num_rows=st.integers(0, 50), size=st.integers(1, 9))
def test_shares_are_contiguous_disjoint_and_of_like_length(num_rows: int, size: int) -> None:
    shares = [range(num_rows)[World(rank=rank, size=size).rows(num_rows)] for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(num_rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_what_several_ranks_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    config = configure("train", preset="smoke", options={"rollouts.prompts_per_step": 2})
    with pytest.raises(InputError, match="one a group of a step"):
        train(config, tmp_path / "run", out_dir=tmp_path, world=World(size=3))
    with pytest.raises(InputError, match="--url: expected one process, found 2"):
        train(config, tmp_path / "run", out_dir=tmp_path, url="http://127.0.0.1:9", world=World(size=2))
    options = ["--set", "model.shard_base=true", "--out", str(tmp_path)]
    assert run(cli, ["replay", *options]) == 2
    assert "model.shard_base" in capsys.readouterr().err
    with joined("cpu") as world:
        assert world is SOLO, "without torchrun's environment there is one process"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="without RANK, LOCAL_RANK"), joined("cpu"):
        pass
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(InputError, match="every process takes one GPU"), joined("cuda:1"):
        pass
