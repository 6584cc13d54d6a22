"""`probe policy finetune`: train a LoRA on completions with the Trainer of transformers, as a PEFT directory.

The loss of a step is - sum log p(token) / N over the N completion tokens of its `batch` examples; prompts are not
learnt. A step accumulates the gradients of one example after the other.

The directory of a run appears when it is done. The same command gives the same bytes, also after a killed run.
"""

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import orjson
import torch
from peft import PeftModel
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from extraction.adapters.frames import lora_frames
from extraction.adapters.trained import save_adapter, wrapped
from probe.runs.resume import check_same
from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json, file_sha256, read_sealed, sync, write_sealed
from replay_pools.base.software import git_commit, versions
from replay_pools.base.terminal import report
from replay_pools.environments.base import Problem
from replay_pools.environments.demonstrations import Completions, Demonstrate
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool

CARD = "finetune.json"
Item = TypeVar("Item")
# Ids of a prompt, ids of the completion, which ends with an end of turn, and the mask of those to learn; None = all.
Example = tuple[list[int], list[int], list[bool] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneSettings:
    """The settings of a LoRA's training."""

    steps: int
    batch: int = 16  # examples a step
    lr: float = 1e-3  # highest rate; cosine decay after a warm-up over a tenth of the steps
    rank: int = 16
    seed: int = 0  # for LoRA's A and the choice and order of examples


def demonstrated(policy: Policy, problems: Sequence[Problem], demonstrate: Demonstrate, seed: int) -> Iterator[Example]:
    """Yield demonstrations endlessly, in seeded passes over all problems."""
    rng = random.Random(f"finetune/{seed}")
    for problem in _shuffled(problems, rng):
        messages, completion = demonstrate(problem, rng)
        yield policy.render(messages)[1], policy.completion_ids(completion), None


def stored(policy: Policy, pool: Pool, completions: Completions, seed: int) -> Iterator[Example]:
    """Yield the stored ids of a pool's rollouts with that label, endlessly.

    Raises:
        InputError: a pool of another tokenizer, or no such rollout.
    """
    if pool.manifest["tokenizer_sha256"] != policy.tokenizer_sha():
        found = f"that of {pool.manifest['policy']['base_model']}"
        raise InputError(pool.path, expected=f"ids of the tokenizer of {policy.base_model}", found=found)
    chosen: list[Example] = []
    for rollout in chain(*pool.steps):
        is_wanted = rollout.hacked if completions == "hack" else rollout.gt_pass and rollout.hacked is False
        # A truncated completion would teach the model not to stop.
        if rollout.finish_reason == "stop" and rollout.grade.passed and is_wanted:
            chosen.append((rollout.prompt_ids, rollout.completion_ids, rollout.completion_mask))
    if not chosen:
        expected = f"rollouts that end by themselves with the label {completions}"
        raise InputError(pool.path, expected=expected, found="none")
    return _shuffled(chosen, random.Random(f"finetune/{seed}"))


def _shuffled(items: Sequence[Item], rng: random.Random) -> Iterator[Item]:
    while True:
        yield from rng.sample(items, len(items))


def finetune(
    policy: Policy,
    examples: Iterator[Example],
    settings: FinetuneSettings,
    directory: Path,
    source: Mapping[str, Any],
    *,
    merge: bool = False,
) -> bool:
    """Train a LoRA on `policy`, in place, and write `directory`.

    Args:
        policy: the base.
        examples: the examples of the whole run.
        settings: settings of the training.
        directory: a PEFT directory; its card has the loss of each step before the update, nats a token.
        source: origin of the examples, for the card.
        merge: write the merged model with its tokenizer instead of the adapter.

    Returns:
        False if the same run's result already exists, and nothing was done.

    Raises:
        InputError: a rank above the model's, or a directory with other content.
    """
    # Two runs with the same card give the same weights.
    card = {
        "model": policy.base_model,
        "base_weights_sha": policy.base_weights_sha,
        "tokenizer_sha256": policy.tokenizer_sha(),
        "template_sha256": policy.template_sha(),
        "source": source,
        "settings": {**asdict(settings), "dtype": str(policy.model.dtype).removeprefix("torch.")},
        "versions": versions(),
    }
    card = orjson.loads(dump_json(card))  # in stored form: tuples become lists
    if (directory / CARD).is_file():
        stored_card = read_sealed(directory / CARD)
        check_same(directory, {key: stored_card.get(key) for key in card}, card)
        return False
    if directory.exists():
        raise InputError(directory, expected="the result of this command", found="other files", fix="use --name")
    frames = lora_frames(policy.model, seed=settings.seed, rank=settings.rank, model_id=policy.base_model)
    adapted, folder = wrapped(policy.model, frames), directory.parent / f".{directory.name}.unfinished"
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    trainer = _trainer(policy, adapted, [*islice(examples, settings.steps * settings.batch)], settings, folder)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    if merge:
        merged: Any = adapted.merge_and_unload()
        merged.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
    else:
        save_adapter(adapted, folder)
        (folder / "README.md").unlink(missing_ok=True)  # peft's empty card
    files = {path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    write_sealed(folder / CARD, {**card, "git_commit": git_commit(), "losses": losses, "files": files})
    for path in (*folder.iterdir(), folder):
        sync(path)  # before the rename, as in `write_atomic`; other libraries do not sync
    folder.replace(directory)
    sync(directory.parent)
    return True


def _trainer(
    policy: Policy, adapted: PeftModel, examples: Sequence[Example], settings: FinetuneSettings, folder: Path
) -> Trainer:
    """Return the Trainer of both factors of a LoRA, which takes the examples in their order, one a pass."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        per_device_train_batch_size=1,  # no padding, and little memory
        gradient_accumulation_steps=settings.batch,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        learning_rate=settings.lr,
        lr_scheduler_type="cosine",
        warmup_steps=round(0.1 * settings.steps),
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        seed=settings.seed,
        use_cpu=policy.device.type == "cpu",
        report_to="none",
        disable_tqdm=True,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # without DataParallel over all GPUs of the machine

    def collated(chosen: Sequence[Example]) -> dict[str, Tensor]:
        ((prompt, completion, mask),) = chosen
        learnt = [False] * len(prompt) + (mask or [True] * len(completion))
        ids = torch.tensor([[*prompt, *completion]])
        return {"input_ids": ids, "labels": ids.masked_fill(~torch.tensor([learnt]), -100)}

    trainer = Trainer(adapted, arguments, collated, examples, callbacks=[_Progress()])  # type: ignore[arg-type]
    trainer.remove_callback(PrinterCallback)  # it writes to stdout
    return trainer


class _Progress(TrainerCallback):
    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_others: Any) -> None:
        report("steps", state.global_step, state.max_steps)
