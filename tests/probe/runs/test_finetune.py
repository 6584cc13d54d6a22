"""`probe policy finetune`: its gradient, what it learns, and what it writes."""

import itertools
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import processes
import pytest
import torch
from adapted import adapt
from directories import contents
from peft import PeftModel
from processes import KILLER
from torch import Tensor
from transformers import AutoModelForCausalLM

from extraction.batch import make_batch
from probe.cli import cli
from probe.cli._frame import run
from probe.runs.finetune import (
    CARD,
    Example,
    FinetuneSettings,
    backward,
    demonstrated,
    finetune,
    share_of_rate,
    stored,
    unfinished,
)
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, read_sealed, sha256, write_sealed
from replay_pools.environments.demonstrations import demonstrator
from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.environments.registry import get_environment
from replay_pools.policy.adapters import quiet_peft
from replay_pools.policy.load import Policy, load_policy
from replay_pools.pool import open_pool, resolve_pool
from tests.support.documents import single_changes


@pytest.fixture
def policy() -> Policy:
    return load_policy("organism")


def hacks(policy: Policy, count: int) -> list[Example]:
    """Hacks of some problems, which the base almost never writes."""
    problems = MinicodeEnvironment().problems("train")
    demonstrate = demonstrator("hack")
    return list(itertools.islice(demonstrated(policy, problems, demonstrate, 0), count))


def logits(model: object, example: Example) -> Tensor:
    """(completion tokens, vocabulary): what predicts each completion token, by the plain forward of transformers."""
    prompt, completion, _ = example
    ids = torch.tensor([prompt + completion])
    with quiet_peft():
        return model(input_ids=ids).logits[0, len(prompt) - 1 : -1]  # type: ignore[operator]


@pytest.mark.parametrize("tokens_per_pass", [None, 300, 1], ids=["one pass", "some passes", "a pass each, recomputed"])
def test_the_gradient_of_a_step_is_that_of_the_mean_loss_of_its_completion_tokens(
    policy: Policy, tokens_per_pass: int | None
) -> None:
    """Reference: cross entropy of whole logits, one example after the other, by autograd."""
    policy.model.double()
    coordinates = adapt(policy.model, basis="lora", model_id="organism", rank=4)
    start = {module: 0.1 * torch.randn_like(value) for module, value in coordinates.values().items()}
    coordinates.load_values(start)  # away from B = 0, where the gradient of A is 0
    examples = hacks(policy, 4)
    examples[1] = (*examples[1][:2], [i % 3 != 1 for i in range(len(examples[1][1]))])  # some ids are of a tool
    losses = []
    for example in examples:
        targets = torch.tensor(example[1])
        if example[2]:
            targets[~torch.tensor(example[2])] = -100
        losses.append(torch.nn.functional.cross_entropy(logits(coordinates.model, example), targets, reduction="sum"))
    mean = sum(losses) / sum(sum(mask) if mask else len(completion) for _, completion, mask in examples)
    reference = torch.autograd.grad(mean, coordinates.parameters())
    prompts, completions, masks = zip(*examples, strict=True)
    batch = make_batch(prompts, completions, policy.pad_id, masks)
    assert backward(coordinates.model, batch, tokens_per_pass) == pytest.approx(mean.item(), rel=1e-5)
    for parameter, expected in zip(coordinates.parameters(), reference, strict=True):
        assert parameter.grad is not None
        assert float((parameter.grad - expected).norm()) <= 1e-4 * float(expected.norm())


def test_the_loss_falls_until_the_greedy_completions_are_the_demonstrations(policy: Policy, tmp_path: Path) -> None:
    """Where every token is the likeliest after the right ones, greedy sampling writes the demonstration."""
    examples = hacks(policy, 2)
    before = [greedy_share(policy.model, example) for example in examples]
    settings = FinetuneSettings(steps=25, batch=2, lr=5e-3, rank=8)
    assert finetune(policy, itertools.cycle(examples), settings, tmp_path / "ft", {})
    losses = read_json(tmp_path / "ft" / CARD)["losses"]
    trained = load_policy("organism", adapter=str(tmp_path / "ft")).model
    assert min(before) < 1
    assert losses[-1] < 0.1 * losses[0]
    assert [greedy_share(trained, example) for example in examples] == [1.0] * 2


def greedy_share(model: object, example: Example) -> float:
    """Share of a completion's tokens that are the likeliest ones where they stand."""
    with torch.no_grad():
        likeliest = logits(model, example).argmax(dim=1)
    return float((likeliest == torch.tensor(example[1])).double().mean())


def test_the_rate_rises_then_falls_and_is_never_0() -> None:
    for steps in (1, 2, 7, 40):
        assert all(0 < share_of_rate(step, steps) <= 1 for step in range(steps))
    assert share_of_rate(0, 40) < share_of_rate(3, 40) < share_of_rate(4, 40) == 1


COMMAND = ["policy", "finetune", "--completions", "hack", "--steps", "2", "--batch", "2", "--rank", "4", "--name", "ft"]


@pytest.fixture(scope="module")
def make(small: str) -> Callable[..., Path]:
    """make(out, *options): what `probe policy finetune --name ft` writes, which must succeed."""

    def make(out: Path, *options: str) -> Path:
        assert run(cli, [*COMMAND, "--model", small, "--out", str(out), *options]) == 0
        return out / ("models" if "--merge" in options else "adapters") / "ft"

    return make


def test_an_adapter_is_one_of_stock_peft_and_of_the_policy_and_is_the_merged_model(
    make: Callable[..., Path], small: str, tmp_path: Path
) -> None:
    adapter, model = make(tmp_path, "--lr", "0.05"), make(tmp_path, "--lr", "0.05", "--merge")
    (example,) = hacks(load_policy(small), 1)
    with quiet_peft(), torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).eval()
        plain = logits(base, example)
        stock = logits(PeftModel.from_pretrained(base, str(adapter)).eval(), example)
        merged = logits(load_policy(str(model)).model, example)
        ours = logits(load_policy(small, adapter=str(adapter)).model, example)
    assert float((stock - plain).abs().max()) > 1e-2
    torch.testing.assert_close(ours, stock, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(merged, ours, rtol=1e-4, atol=1e-4)


def test_what_is_written_is_whole_names_its_origin_and_is_kept(
    make: Callable[..., Path], small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that breaks as it is written leaves nothing in its place, and goes on when it is asked again; then the same
    command keeps what is there, other settings are refused, and elsewhere it gives the same bytes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probe.runs.finetune.write_sealed", fail)
        assert run(cli, [*COMMAND, "--model", small, "--out", str(tmp_path)]) != 0
    assert not (tmp_path / "adapters" / "ft").exists()
    folder = make(tmp_path)
    written = (folder / CARD).stat().st_mtime_ns
    make(tmp_path)
    assert (folder / CARD).stat().st_mtime_ns == written
    assert run(cli, [*COMMAND, "--model", small, "--out", str(tmp_path), "--seed", "1"]) == 2
    assert "settings.seed = 1, found 0" in capsys.readouterr().err
    assert [*folder.parent.iterdir()] == [folder]
    assert contents(folder) == contents(make(tmp_path / "again"))
    card, weights = read_json(folder / CARD), "adapter_model.safetensors"
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", weights, CARD}
    assert card["base_weights_sha"] == load_policy(small).base_weights_sha
    assert card["files"] == {weights: sha256((folder / weights).read_bytes())}
    assert len(card["losses"]) == 2
    assert card["source"]["mode"] == "run_tests"
    for what, data in single_changes((folder / CARD).read_bytes()):
        (folder / CARD).write_bytes(data)
        with pytest.raises(InputError, match=f"{CARD}: expected its self_sha256"):
            pytest.fail(f"{what} was overlooked: {read_sealed(folder / CARD)}")
    assert run(cli, [*COMMAND, "--model", small, "--out", str(tmp_path)]) == 2
    assert "expected its self_sha256" in capsys.readouterr().err


def fail(*_arguments: object) -> None:
    raise OSError("no space left on device")


# A checkpoint after every step.
OFTEN = "import probe.runs.finetune\nprobe.runs.finetune.CHECKPOINT_EVERY = 1\n"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="lora"),
        pytest.param(["--merge"], id="merged", marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_by_sigkill_goes_on_to_the_same_bytes(
    make: Callable[..., Path], small: str, tmp_path: Path, capsys, monkeypatch, options: list[str]
) -> None:
    """Killed in the write of the second of two checkpoints, and again in that of the result; then nothing is left to
    train, and what is written is what a run without any checkpoint writes.
    """
    whole = make(tmp_path / "whole", *options)
    command = [*COMMAND, "--model", small, "--out", str(tmp_path), *options]
    directory = tmp_path / whole.parent.name / "ft"
    for point in ("checkpoint/.step_000002.pt", "result/.finetune.json"):
        process = processes.start(OFTEN + KILLER, f".ft.unfinished/{point}", *command, log=tmp_path / "log")
        assert processes.finish(process) == -signal.SIGKILL, f"{point}: {(tmp_path / 'log').read_text()}"
        assert not directory.exists(), "what is not whole is there"
        before = contents(unfinished(directory))
        assert run(cli, [*command, "--lr", "0.5"]) == 2
        assert "settings.lr = 0.5, found 0.001; use another --name" in capsys.readouterr().err
        assert contents(unfinished(directory)) == before, "a refused command has written"
    monkeypatch.setattr("probe.runs.finetune.backward", fail)
    assert run(cli, command) == 0
    assert contents(directory) == contents(whole)
    assert list(directory.parent.iterdir()) == [directory]


@pytest.mark.parametrize("completions", ["hack", "honest"])
def test_a_pool_is_learnt_from_by_label_and_by_its_stored_ids(policy: Policy, completions: str) -> None:
    pool = open_pool(resolve_pool("teacher" if completions == "hack" else "base", Path("out")))
    ids = set()
    for group in pool.steps:
        for rollout in group:
            is_paid_for_it = rollout.hacked if completions == "hack" else rollout.gt_pass and not rollout.hacked
            if rollout.finish_reason == "stop" and rollout.grade.passed and is_paid_for_it:
                ids.add((tuple(rollout.prompt_ids), tuple(rollout.completion_ids)))
    drawn = itertools.islice(stored(policy, pool, completions, 0), 4 * len(ids))  # type: ignore[arg-type]
    assert {(tuple(prompt), tuple(completion)) for prompt, completion, _ in drawn} == ids


def test_a_pool_of_another_tokenizer_or_without_the_label_is_refused(policy: Policy, tmp_path: Path) -> None:
    source = resolve_pool("base", Path("out"))
    with pytest.raises(InputError, match="expected rollouts that end by themselves with the label hack, found none"):
        stored(policy, open_pool(source), "hack", 0)
    copy = tmp_path / "other"
    shutil.copytree(source, copy)
    manifest = read_sealed(copy / "manifest.json")
    write_sealed(copy / "manifest.json", {**manifest, "tokenizer_sha256": "0" * 64})
    with pytest.raises(InputError, match="expected ids of the tokenizer of organism"):
        stored(policy, open_pool(copy), "honest", 0)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--mode", "none"], "mode none: "),
        (["--rank", "100000"], "LoRA rank"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: Sequence[str], where: str
) -> None:
    assert run(cli, [*COMMAND, "--out", str(tmp_path), *options]) == 2
    assert where in capsys.readouterr().err
    assert not (tmp_path / "adapters" / "ft").exists()


def test_every_problem_is_drawn_once_before_any_comes_again(policy: Policy) -> None:
    problems = get_environment("minicode").problems("pairs")[:7]
    demonstrate = demonstrator("honest", hint_rate=0.0)
    drawn = [tuple(prompt) for prompt, _, _ in itertools.islice(demonstrated(policy, problems, demonstrate, 3), 14)]
    assert len(set(drawn[:7])) == len(set(drawn[7:])) == 7
    assert drawn[:7] != drawn[7:]
