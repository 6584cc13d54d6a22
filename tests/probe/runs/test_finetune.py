"""`probe policy finetune`: its loss, what it learns, and what it writes."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from directories import contents
from peft import PeftModel
from processes import interrupted_at
from torch import Tensor
from transformers import AutoModelForCausalLM

from probe.cli import cli
from probe.cli._frame import run
from probe.runs import finetune as runs_finetune
from probe.runs.finetune import CARD, Example, FinetuneSettings, demonstrated, finetune, stored
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, read_sealed, sha256, write_sealed
from replay_pools.environments.demonstrations import demonstrator
from replay_pools.environments.registry import get_environment
from replay_pools.policy.adapters import quiet_peft
from replay_pools.policy.load import Policy, load_policy
from replay_pools.pool import open_pool, resolve_pool


@pytest.fixture
def policy() -> Policy:
    return load_policy("organism")


def hacks(policy: Policy, count: int) -> list[Example]:
    """Hacks of some problems, which the base almost never writes."""
    problems = get_environment("minicode").problems("train")
    demonstrate = demonstrator("hack")
    return list(itertools.islice(demonstrated(policy, problems, demonstrate, 0), count))


def logits(model: object, example: Example) -> Tensor:
    """(completion tokens, vocabulary): what predicts each completion token, by the plain forward of transformers."""
    prompt, completion, _ = example
    ids = torch.tensor([prompt + completion])
    with quiet_peft():
        return model(input_ids=ids).logits[0, len(prompt) - 1 : -1]  # type: ignore[operator]


def test_the_loss_of_a_step_is_the_mean_over_its_completion_tokens(policy: Policy, tmp_path: Path) -> None:
    """By the plain forward of transformers, one example after the other; some ids of the second are a tool's."""
    examples = hacks(policy, 3)
    examples[1] = (*examples[1][:2], [i % 3 != 1 for i in range(len(examples[1][1]))])
    nll = []
    for prompt, completion, mask in examples:
        logprobs = logits(policy.model, (prompt, completion, mask)).log_softmax(1)
        chosen = -logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0]
        nll.append(chosen[torch.tensor(mask)] if mask else chosen)
    assert finetune(policy, iter(examples), FinetuneSettings(steps=1, batch=3, rank=2), tmp_path / "ft", {})
    assert read_json(tmp_path / "ft" / CARD)["losses"] == pytest.approx([float(torch.cat(nll).mean())], rel=1e-5)


COMMAND = ["policy", "finetune", "--completions", "hack", "--steps", "2", "--batch", "2", "--rank", "4", "--name", "ft"]


@pytest.fixture(scope="module")
def make(small: str) -> Callable[..., Path]:
    """make(out, *options, code=0): what `probe policy finetune --name ft` writes."""

    def make(out: Path, *options: str, code: int = 0) -> Path:
        assert run(cli, [*COMMAND, "--model", small, "--out", str(out), *options]) == code
        return out / ("models" if "--merge" in options else "adapters") / "ft"

    return make


def test_an_adapter_is_one_of_stock_peft_and_of_the_policy_and_is_the_merged_model(make, small: str, tmp_path) -> None:
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


def test_what_is_written_names_its_origin_and_is_kept(make, small: str, tmp_path: Path, capsys) -> None:
    """The same command keeps what is there, other settings and a changed card are refused."""
    folder = make(tmp_path)
    written = (folder / CARD).stat().st_mtime_ns
    make(tmp_path)
    assert (folder / CARD).stat().st_mtime_ns == written
    make(tmp_path, "--seed", "1", code=2)
    assert "settings.seed = 1, found 0" in capsys.readouterr().err
    assert [*folder.parent.iterdir()] == [folder]
    card, weights = read_json(folder / CARD), "adapter_model.safetensors"
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", weights, CARD}
    assert card["base_weights_sha"] == load_policy(small).base_weights_sha
    assert card["files"] == {weights: sha256((folder / weights).read_bytes())}
    assert len(card["losses"]) == 2
    assert card["source"]["mode"] == "run_tests"
    data = (folder / CARD).read_bytes()
    (folder / CARD).write_bytes(data.replace(b'"steps": 2', b'"steps": 3'))
    make(tmp_path, code=2)
    assert "expected its self_sha256" in capsys.readouterr().err


def test_a_killed_run_leaves_no_result_and_is_made_again_with_the_same_bytes(make, tmp_path: Path, monkeypatch) -> None:
    """Killed as the result is written."""
    whole = make(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(runs_finetune, "file_sha256", interrupted_at(1, runs_finetune.file_sha256))
        make(tmp_path, code=130)
    assert not (tmp_path / "adapters" / "ft").exists(), "what is not whole is there"
    again = make(tmp_path)
    assert contents(again) == contents(whole)
    assert list(again.parent.iterdir()) == [again]


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
    ("options", "where"), [(["--mode", "none"], "mode none: "), (["--rank", "100000"], "LoRA rank")]
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path, capsys, options, where: str) -> None:
    assert run(cli, [*COMMAND, "--out", str(tmp_path), *options]) == 2
    assert where in capsys.readouterr().err
    assert not (tmp_path / "adapters" / "ft").exists()


def test_every_problem_is_drawn_once_before_any_comes_again(policy: Policy) -> None:
    problems = get_environment("minicode").problems("pairs")[:7]
    demonstrate = demonstrator("honest", hint_rate=0.0)
    drawn = [tuple(prompt) for prompt, _, _ in itertools.islice(demonstrated(policy, problems, demonstrate, 3), 14)]
    assert len(set(drawn[:7])) == len(set(drawn[7:])) == 7
    assert drawn[:7] != drawn[7:]
