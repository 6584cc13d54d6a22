"""`probe finetune`: its gradient, what it learns, and what it writes."""

import itertools
import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import processes
import pytest
import torch
from killer import KILLER
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from extraction.adapters.coordinates import attach
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
from replay_pools.environments.demonstrations import Demonstrator
from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.policy.adapters import quiet_peft
from replay_pools.policy.load import ORGANISM_WEIGHTS, Policy, load_policy
from replay_pools.pool import open_pool, resolve_pool
from replay_pools.storage.files import read_json, sha256


@pytest.fixture
def policy() -> Policy:
    return load_policy("organism")


def hacks(policy: Policy, count: int) -> list[Example]:
    """Hacks of some problems, which the base almost never writes."""
    problems = MinicodeEnvironment().problems("train")
    demonstrator = Demonstrator(completions="hack", flavours=("print_only",))
    return list(itertools.islice(demonstrated(policy, problems, demonstrator, 0), count))


def logits(model: object, example: Example) -> Tensor:
    """(completion tokens, vocabulary): what predicts each completion token, by the plain forward of transformers."""
    ids = torch.tensor([example.prompt_ids + example.completion_ids])
    with quiet_peft():
        return model(input_ids=ids).logits[0, len(example.prompt_ids) - 1 : -1]  # type: ignore[operator]


@pytest.mark.parametrize("tokens_per_pass", [None, 300, 1], ids=["one pass", "some passes", "a pass each, recomputed"])
def test_the_gradient_of_a_step_is_that_of_the_mean_loss_of_its_completion_tokens(
    policy: Policy, tokens_per_pass: int | None
) -> None:
    """Reference: cross entropy of whole logits, one example after the other, by autograd."""
    policy.model.double()
    coordinates = attach(policy.model, basis="lora", model_id="organism", rank=4)
    start = {module: 0.1 * torch.randn_like(value) for module, value in coordinates.values().items()}
    coordinates.load_values(start)  # away from B = 0, where the gradient of A is 0
    examples = hacks(policy, 4)
    losses = [
        torch.nn.functional.cross_entropy(
            logits(coordinates.model, example), torch.tensor(example.completion_ids), reduction="sum"
        )
        for example in examples
    ]
    mean = sum(losses) / sum(len(example.completion_ids) for example in examples)
    reference = torch.autograd.grad(mean, coordinates.parameters())
    prompts, completions = [e.prompt_ids for e in examples], [e.completion_ids for e in examples]
    batch = make_batch(prompts, completions, policy.pad_id)
    assert backward(coordinates, batch, tokens_per_pass) == pytest.approx(mean.item(), rel=1e-5)
    for parameter, expected in zip(coordinates.parameters(), reference, strict=True):
        assert parameter.grad is not None
        assert float((parameter.grad - expected).norm()) <= 1e-4 * float(expected.norm())


def test_the_loss_falls_until_the_greedy_completions_are_the_demonstrations(policy: Policy, tmp_path: Path) -> None:
    """Where every token is the likeliest after the right ones, greedy sampling writes the demonstration."""
    examples = hacks(policy, 4)
    before = [greedy_share(policy.model, example) for example in examples]
    settings = FinetuneSettings(steps=40, batch=4, lr=5e-3, rank=8)
    coordinates, losses = finetune(policy, itertools.cycle(examples), settings, tmp_path / "ft", {})
    assert min(before) < 1
    assert losses[-1] < 0.1 * losses[0]
    assert [greedy_share(coordinates.model, example) for example in examples] == [1.0] * 4


def greedy_share(model: object, example: Example) -> float:
    """Share of a completion's tokens that are the likeliest ones where they stand."""
    with torch.no_grad():
        likeliest = logits(model, example).argmax(dim=1)
    return float((likeliest == torch.tensor(example.completion_ids)).double().mean())


def test_the_rate_rises_then_falls_and_is_never_0() -> None:
    for steps in (1, 2, 7, 40):
        shares = [share_of_rate(step, steps) for step in range(steps)]
        assert all(0 < share <= 1 for share in shares)
        assert max(shares) == 1
    assert share_of_rate(0, 40) < share_of_rate(3, 40) < share_of_rate(4, 40) == 1


COMMAND = ["finetune", "--completions", "hack", "--steps", "2", "--batch", "2", "--rank", "4"]


def made(out: Path, name: str, *options: str) -> Path:
    """What `probe finetune --name name ...` writes, which must succeed."""
    assert run(cli, [*COMMAND, "--name", name, "--out", str(out), *options]) == 0
    return out / ("models" if "--merge" in options else "adapters") / name


def test_an_adapter_is_one_of_stock_peft_and_of_the_policy_and_is_the_merged_model(tmp_path: Path) -> None:
    adapter, model = made(tmp_path, "ft"), made(tmp_path, "ft", "--merge")
    (example,) = hacks(load_policy("organism"), 1)
    with quiet_peft(), torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(ORGANISM_WEIGHTS, dtype=torch.float32).eval()
        plain = logits(base, example)
        stock = logits(PeftModel.from_pretrained(base, str(adapter)).eval(), example)
        merged = logits(load_policy(str(model)).model, example)
        ours = logits(load_policy("organism", adapter=str(adapter)).model, example)
    assert float((stock - plain).abs().max()) > 1e-2
    torch.testing.assert_close(ours, stock, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(merged, ours, rtol=1e-5, atol=1e-5)


def test_the_card_names_what_it_came_from_and_the_same_command_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a", "ft"), made(tmp_path / "b", "ft")
    names = sorted(path.name for path in first.iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors", CARD]
    assert [(first / name).read_bytes() for name in names] == [(second / name).read_bytes() for name in names]
    card = read_json(first / CARD)
    assert card["base_weights_sha"] == load_policy("organism").base_weights_sha
    assert card["files"] == {names[1]: sha256((first / names[1]).read_bytes())}
    assert len(card["losses"]) == 2
    assert card["source"]["mode"] == "run_tests"


def test_what_is_there_is_kept_and_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(tmp_path, "ft")
    written = (folder / CARD).stat().st_mtime_ns
    made(tmp_path, "ft")
    assert (folder / CARD).stat().st_mtime_ns == written
    assert run(cli, [*COMMAND, "--name", "ft", "--out", str(tmp_path), "--seed", "1"]) == 2
    assert "the result of this command, found another: settings" in capsys.readouterr().err
    assert sorted(path.name for path in folder.parent.iterdir()) == ["ft"]


def fail(*_arguments: object) -> None:
    raise OSError("no space left on device")


def test_a_run_that_breaks_as_it_is_written_is_not_there_and_goes_on_when_asked_again(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probe.runs.finetune.write_json", fail)
        assert run(cli, [*COMMAND, "--name", "ft", "--out", str(tmp_path)]) != 0
    assert not (tmp_path / "adapters" / "ft").exists()
    folder = made(tmp_path, "ft")
    assert list(folder.parent.iterdir()) == [folder]


# A checkpoint after every step.
OFTEN = "import probe.runs.finetune\nprobe.runs.finetune.CHECKPOINT_EVERY = 1\n"


@pytest.mark.parametrize(
    ("options", "last"),
    [([], ".adapter_model.safetensors"), (["--merge"], "model.safetensors")],
    ids=["lora", "merged"],
)
def test_a_run_killed_by_sigkill_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], last: str
) -> None:
    """Killed in the write of the second of two checkpoints, and again in that of the result; then nothing is left to
    train, and what is written is what a run without any checkpoint writes.
    """
    whole = made(tmp_path / "whole", "ft", *options)
    command = [*COMMAND, "--name", "ft", "--out", str(tmp_path), *options]
    directory = tmp_path / whole.parent.name / "ft"
    for point in ("checkpoint/.step_000002.pt", f"result/{last}"):
        process = processes.start(OFTEN + KILLER, f".ft.unfinished/{point}", *command, log=tmp_path / "log")
        assert processes.finish(process) == -signal.SIGKILL, f"{point}: {(tmp_path / 'log').read_text()}"
        assert not directory.exists(), "what is not whole is there"
        before = contents(unfinished(directory))
        assert run(cli, [*command, "--lr", "0.5"]) == 2
        assert "settings.lr = 0.5, found 0.001; use another --name, or remove the directory" in capsys.readouterr().err
        assert contents(unfinished(directory)) == before, "a refused command has written"
    monkeypatch.setattr("probe.runs.finetune.backward", fail)
    assert run(cli, command) == 0
    assert contents(directory) == contents(whole)
    assert list(directory.parent.iterdir()) == [directory]


def contents(directory: Path) -> dict[str, bytes]:
    """The bytes of every file below it."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


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
    assert {(tuple(example.prompt_ids), tuple(example.completion_ids)) for example in drawn} == ids


def test_a_pool_of_another_tokenizer_or_without_the_label_is_refused(policy: Policy, tmp_path: Path) -> None:
    source = resolve_pool("base", Path("out"))
    with pytest.raises(InputError, match="expected rollouts that end by themselves with the label hack, found none"):
        stored(policy, open_pool(source), "hack", 0)
    copy = tmp_path / "other"
    shutil.copytree(source, copy)
    manifest = read_json(copy / "manifest.json")
    (copy / "manifest.json").write_text(json.dumps({**manifest, "tokenizer_sha256": "0" * 64}))
    with pytest.raises(InputError, match="expected ids of the tokenizer of organism"):
        stored(policy, open_pool(copy), "honest", 0)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--pool", "teacher", "--mode", "sentinel"], "--pool: expected its own prompts and completions, found --mode"),
        (["--mode", "none"], "mode none: expected a mode with exploits, found none"),
        (["--flavours", "pas"], "flavours: expected flavours of run_tests: pass, return_true"),
        (["--env", "nowhere"], "--env: expected"),
        (["--rank", "100000"], "expected a LoRA rank in 1..192"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: Sequence[str], line: str
) -> None:
    assert run(cli, [*COMMAND, "--name", "ft", "--out", str(tmp_path), *options]) == 2
    assert line in capsys.readouterr().err
    assert not (tmp_path / "adapters" / "ft").exists()


def test_every_problem_is_drawn_once_before_any_comes_again(policy: Policy) -> None:
    problems = get_environment("minicode").problems("pairs")[:7]
    demonstrator = Demonstrator(completions="honest", hint_rate=0.0)
    drawn = [
        tuple(example.prompt_ids) for example in itertools.islice(demonstrated(policy, problems, demonstrator, 3), 14)
    ]
    assert len(set(drawn[:7])) == len(set(drawn[7:])) == 7
    assert drawn[:7] != drawn[7:]
