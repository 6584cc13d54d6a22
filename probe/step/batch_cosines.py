"""probe.cosines: the alignment of each sample's gradient with a direction.

    g_i = gradient of -sum_t log p(token_it), t over the scored tokens, in the coordinates of the directions
    cos_i = sum_m <u_m, g_im> / (sqrt(M) |g_i|)                                 `probe.step.projection`

Positive: a training step on this completion makes the hack more likely.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from extraction.adapters.frames import SVD_CACHE, check_adapters, make_frames, target_layers
from extraction.batch import Batch, make_batch, masked_batch
from extraction.directions import Directions, known_directions
from extraction.gradients import per_sample_gradients
from extraction.library import answer_tokens
from extraction.pair_files import answer_of, messages_of
from probe.step.projection import sample_cosines
from replay_pools.base.errors import InputError
from replay_pools.logs.rows import read_rows
from replay_pools.policy.load import Policy

IGNORED = -100  # transformers' label of a token without a loss


def cosines(
    model: nn.Module | Policy,
    batch: Mapping[str, Tensor] | Sequence[Mapping[str, Any]],
    direction: Directions | str | Path,
    *,
    cache_dir: str | Path | None = SVD_CACHE,
) -> Tensor:
    """Compute the cosine of every sample's gradient with the direction, (G,) on the CPU; NaN for a gradient of 0.

    One forward and backward for all samples. The model does not change: weights, modes and `.grad` stay.

    >>> policy = probe.load("organism")
    >>> rows = [{"prompt": "Add 1 and 2.", "completion": answer} for answer in ("3", "raise SystemExit(0)")]
    >>> probe.cosines(policy, rows, "v_hack").shape
    torch.Size([2])

    Args:
        model: the policy of `probe.load`, or a causal model of transformers, with or without adapters of peft.
        batch: `input_ids` and `labels` (G, T), one sample a row. The label -100 marks a token without a loss, anywhere
            in a row; the first token of a sample has no loss, since nothing predicts it. An `attention_mask` marks
            padding, on either side; positions count from the first token that is not padding. With a policy, also rows
            or a DataFrame: `prompt` (a text or messages), `completion` (a text, or turns with tool answers between).
        direction: made from the weights below the adapters of `model`; or its file, or its name in out/directions.
        cache_dir: the folder where `probe.extract` left the SVDs; None computes them.

    Raises:
        InputError: directions of other weights, other inputs of the model in the batch, labels that are not of
            `input_ids`, a sample without a label, several samples in a row.
    """
    where, directions = known_directions(direction)
    loaded: Any = model.model if isinstance(model, Policy) else model
    fingerprint = directions.metadata["fingerprint"]
    layers = target_layers(loaded, fingerprint["targets"])
    check_adapters(layers, has_dropout=False)
    frames = make_frames(where, layers, fingerprint, None if cache_dir is None else Path(cache_dir))
    device = next(loaded.parameters()).device
    samples = _of_tensors(batch) if isinstance(batch, Mapping) else _of_texts(model, batch)
    gradients = per_sample_gradients(loaded, {frames.basis: frames}, samples.to(device)).gradients
    return sample_cosines(gradients[frames.basis], directions.to(device).vectors).cos.cpu()


def _of_tensors(batch: Mapping[str, Tensor]) -> Batch:
    """Check a batch of transformers, and move its padding to the right."""
    ids = batch["input_ids"].cpu()
    attention = batch.get("attention_mask", torch.ones_like(ids)).cpu()
    is_token = attention.bool()
    labels = batch["labels"].cpu() if "labels" in batch else ids.masked_fill(~is_token, IGNORED)
    positions = batch.get("position_ids", torch.arange(ids.shape[-1]).expand_as(ids)).cpu()
    parts = {"input_ids": ids, "labels": labels, "attention_mask": attention, "position_ids": positions}
    if others := [name for name in batch if name not in parts]:
        fix = f"leave it out; a mask of the completion belongs into labels, as {IGNORED} elsewhere"
        raise InputError("batch", expected=", ".join(parts), found=others[0], fix=fix)
    if ids.ndim != 2 or {part.shape for part in parts.values()} != {ids.shape}:
        found = ", ".join(f"{name} {tuple(part.shape)}" for name, part in parts.items())
        raise InputError("batch", expected="tensors of one shape (G, T)", found=found)
    has_label = labels != IGNORED
    if bool((has_label & ~is_token).any()):
        raise InputError("batch labels", expected=f"{IGNORED} on padding", found="labels", fix="mask the padding")
    if not torch.equal(labels[has_label], ids[has_label]):
        fix = "give the labels of transformers, which are not shifted"
        raise InputError("batch labels", expected=f"the ids of input_ids, or {IGNORED}", found="others", fix=fix)
    order = is_token.byte().argsort(dim=1, descending=True, stable=True)  # tokens first, padding behind
    ids, is_token, is_scored, positions = (part.gather(1, order) for part in (ids, is_token, has_label, positions))
    goes_on = (positions.diff(dim=1) == 1) & (order.diff(dim=1) == 1)
    is_late = "position_ids" in batch and bool((positions[:, 0] != 0).any())
    if is_late or bool((attention > 1).any()) or not bool(goes_on[is_token[:, 1:]].all()):
        fix = "give every sample one row, with padding at its ends and positions from 0"
        found = "positions with gaps, or from a later one than 0"
        raise InputError("batch", expected="one sample a row, of adjacent tokens", found=found, fix=fix)
    is_scored[:, :1] = False
    return masked_batch(ids, is_token, is_scored)


def _of_texts(policy: nn.Module | Policy, rows: Sequence[Mapping[str, Any]]) -> Batch:
    """Render prompts by the chat template of the policy, and tokenize written completions."""
    if not isinstance(policy, Policy):
        fix = "give tensors, or the policy of probe.load, which has a tokenizer"
        raise InputError("batch", expected="input_ids and labels", found=type(rows).__name__, fix=fix)
    tokens = []
    for number, row in enumerate(row.fields for row in read_rows(rows)):
        if missing := [key for key in ("prompt", "completion") if row.get(key) is None]:
            raise InputError(f"batch sample {number}", expected="prompt and completion", found=f"no {missing[0]}")
        tokens.append(answer_tokens(policy, messages_of(row["prompt"]), answer_of(row["completion"])))
    prompts, completions, masks = zip(*tokens, strict=True)
    return make_batch(prompts, completions, policy.pad_id, masks)
