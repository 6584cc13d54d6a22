"""`probe policy finetune`: train a LoRA on completions by their mean negative log-likelihood, as a PEFT directory.

The loss of a step is - sum log p(token) / N over the N completion tokens of its `batch` examples; prompts are not
learnt. A step that exceeds the memory is split into passes with the same total gradient.

The directory of a run appears when it is done. Until then the hidden folder `.NAME.unfinished` next to it holds the
run's card and a checkpoint every CHECKPOINT_EVERY steps. A killed run resumes from there and writes the same bytes.
"""

import math
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from extraction.adapters.frames import lora_frames
from extraction.adapters.trained import Trained
from extraction.batch import Batch, make_batch, make_rows
from extraction.logprobs import completion_logprobs, split_model
from extraction.passes import checkpointed, make_plan, tokens_that_fit
from probe.runs.resume import check_same, drop_checkpoints, load_checkpoint, save_checkpoint
from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json, file_sha256, read_sealed, sync, write_sealed
from replay_pools.base.software import git_commit, versions
from replay_pools.base.terminal import report
from replay_pools.environments.base import Problem
from replay_pools.environments.demonstrations import Completions, Demonstrate
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool

CARD = "finetune.json"
MAX_NORM = 1.0  # cap on the gradient norm of a step
WARM_UP = 0.1  # share of the steps
CHECKPOINT_EVERY = 10  # steps
# A pass gets 1 / PART_OF_PASS of the tokens of a pass without LoRA, because peft keeps the inputs of every LoRA in
# float32. Measured on SmolLM2 in bfloat16: 2.3 to 2.8 MB a token, against 0.9 without LoRA.
PART_OF_PASS = 4
Item = TypeVar("Item")
# Ids of a prompt, ids of the completion, which ends with an end of turn, and the mask of those to learn; None = all.
Example = tuple[list[int], list[int], list[bool] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneSettings:
    """The settings of a LoRA's training."""

    steps: int
    batch: int = 16  # examples a step
    lr: float = 1e-3  # highest rate; cosine decay after a warm-up
    rank: int = 16
    seed: int = 0  # for LoRA's A and the choice and order of examples


def demonstrated(policy: Policy, problems: Sequence[Problem], demonstrate: Demonstrate, seed: int) -> Iterator[Example]:
    """Yield demonstrations endlessly, in seeded passes over all problems."""
    rng = random.Random(f"finetune/{seed}")
    for problem in _shuffled(problems, rng):
        messages, completion = demonstrate(problem, rng)
        _, prompt_ids = policy.render(messages)
        yield prompt_ids, policy.completion_ids(completion), None


def stored(policy: Policy, pool: Pool, completions: Completions, seed: int) -> Iterator[Example]:
    """Yield the stored ids of a pool's rollouts with that label, endlessly.

    Raises:
        InputError: a pool of another tokenizer, or no such rollout.
    """
    tokenizer = policy.tokenizer_sha()
    if pool.manifest["tokenizer_sha256"] != tokenizer:
        found = f"that of {pool.manifest['policy']['base_model']}"
        raise InputError(pool.path, expected=f"ids of the tokenizer of {policy.base_model}", found=found)
    chosen = []
    for rollout in (rollout for group in pool.steps for rollout in group):
        is_wanted = rollout.hacked if completions == "hack" else rollout.gt_pass and rollout.hacked is False
        # A truncated completion would teach the model not to stop.
        if rollout.finish_reason == "stop" and rollout.grade.passed and is_wanted:
            chosen.append(rollout)
    if not chosen:
        expected = f"rollouts that end by themselves with the label {completions}"
        raise InputError(pool.path, expected=expected, found="none")
    rng = random.Random(f"finetune/{seed}")
    return ((each.prompt_ids, each.completion_ids, each.completion_mask) for each in _shuffled(chosen, rng))


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
    """Train a LoRA on `policy`, in place, from the last checkpoint if there is one, and write `directory`.

    Args:
        policy: the base.
        examples: the examples of the whole run, from its first step.
        settings: settings of the training.
        directory: a PEFT directory; its card has the loss of each step before the update, nats a token.
        source: origin of the examples, for the card.
        merge: write the merged model with its tokenizer instead of the adapter.

    Returns:
        False if the same run's result already exists, and nothing was done.

    Raises:
        InputError: a rank above the model's, a model that cannot be scored (`completion_logprobs`), or a directory with
            other content.
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
    folder = unfinished(directory)
    begun = [place for place in (directory, folder) if (place / CARD).is_file()]
    for place in begun:
        stored_card = read_sealed(place / CARD)
        check_same(place, {key: stored_card.get(key) for key in card}, card)
    is_new = not directory.exists()
    if is_new:
        training = _Training(policy, settings)
        for _ in range(load_checkpoint(folder, training) * settings.batch):
            next(examples)
        for done in range(len(training.losses) + 1, settings.steps + 1):
            training.step([next(examples) for _ in range(settings.batch)])
            if done % CHECKPOINT_EVERY == 0:
                write_sealed(folder / CARD, card)  # before the checkpoint, which needs it
                save_checkpoint(folder, done, training)
                drop_checkpoints(folder, done, keep=1)
            report("steps", done, settings.steps)
        _write(training, directory, card, policy if merge else None)
    elif directory not in begun:
        raise InputError(directory, expected="the result of this command", found="other files", fix="use --name")
    shutil.rmtree(folder, ignore_errors=True)
    return is_new


class _Training:
    """A LoRA in training; `state_dict` is the checkpoint."""

    def __init__(self, policy: Policy, settings: FinetuneSettings) -> None:
        self._policy, self._settings = policy, settings
        frames = lora_frames(policy.model, seed=settings.seed, rank=settings.rank, model_id=policy.base_model)
        self.trained = Trained(policy.model, frames, train_a=True)
        self._optimizer = torch.optim.AdamW(self.trained.parameters(), weight_decay=0.0)
        self.losses: list[float] = []  # one a step

    def step(self, examples: Sequence[Example]) -> None:
        """One step of the optimizer."""
        prompts, completions, masks = zip(*examples, strict=True)
        batch = make_batch(prompts, completions, self._policy.pad_id, masks)
        (group,) = self._optimizer.param_groups
        group["lr"] = self._settings.lr * share_of_rate(len(self.losses), self._settings.steps)
        loss = backward(self.trained.model, batch.to(self._policy.device))
        nn.utils.clip_grad_norm_(self.trained.parameters(), MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a step changes."""
        return {
            "values": self.trained.values(),
            "optimizer": self._optimizer.state_dict(),
            "losses": list(self.losses),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        self.trained.load_values(state["values"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.losses = list(state["losses"])


def share_of_rate(step: int, steps: int) -> float:
    """Return the share of the highest rate at a step 0..steps-1: linear warm-up, then half a cosine; never 0.

    >>> [round(share_of_rate(step, 20), 2) for step in (0, 1, 2, 11, 19)]
    [0.33, 0.67, 1.0, 0.5, 0.01]
    """
    warm_up = round(WARM_UP * steps)
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def backward(model: PreTrainedModel | PeftModel, batch: Batch, tokens_per_pass: int | None = None) -> float:
    """Add the gradient of the mean NLL of the batch's completion tokens to every `.grad`; return the mean, in nats.

    Args:
        model: a model in evaluation mode (without dropout).
        batch: a batch on the model's device.
        tokens_per_pass: most tokens of one forward and backward; None = as many tokens as fit the memory.
    """
    backbone, _ = split_model(model)
    if tokens_per_pass is None:
        tokens_per_pass = tokens_that_fit(backbone) // PART_OF_PASS
    num_tokens, total = int(batch.completion_mask.sum()), 0.0
    for samples, _ in make_plan(backbone, batch, "padded", tokens_per_pass, int):
        rows = make_rows(batch, "padded", samples)
        with checkpointed(backbone, int(batch.lengths[samples].max()) > tokens_per_pass):
            loss = -completion_logprobs(model, rows).sum() / num_tokens
            loss.backward()
        total += loss.item()
    return total


def unfinished(directory: Path) -> Path:
    """Return the folder, next to `directory`, that holds an unfinished run."""
    return directory.parent / f".{directory.name}.unfinished"


def _write(training: _Training, directory: Path, card: dict[str, Any], merged_into: Policy | None) -> None:
    """Write the adapter, or the merged base, with the card, atomically."""
    folder = unfinished(directory) / "result"
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir(parents=True)
    if merged_into is None:
        training.trained.save(folder)
        (folder / "README.md").unlink(missing_ok=True)  # peft's empty card
    else:
        merged: Any = training.trained.model.merge_and_unload()
        merged.save_pretrained(folder)
        merged_into.tokenizer.save_pretrained(folder)
    files = {path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    write_sealed(folder / CARD, {**card, "git_commit": git_commit(), "losses": training.losses, "files": files})
    for path in (*folder.iterdir(), folder):
        sync(path)  # before the rename, as in `write_atomic`; other libraries do not sync
    folder.replace(directory)
    sync(directory.parent)
