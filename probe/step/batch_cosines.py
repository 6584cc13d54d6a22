"""probe.cosines: how far training on each sample of a batch would push a model along a direction.

    g_i = gradient of -sum_t log p(token_it), t over the completion, in the coordinates of the directions
    cos_i = sum_m <u_m, g_im> / (sqrt(M) |g_i|)                                 `probe.step.projection`

Positive: a training step on this completion makes the hack more likely.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from extraction.adapters.frames import SVD_CACHE, make_frames, target_layers
from extraction.batch import Batch, make_batch
from extraction.directions import Directions, known_directions
from extraction.gradients import per_sample_gradients
from extraction.pair_files import answer_of, messages_of
from probe.step.projection import sample_cosines
from replay_pools.errors import InputError
from replay_pools.policy.load import Policy

IGNORED = -100  # the label of a token that has no loss, as of transformers


def cosines(
    model: nn.Module | Policy,
    batch: Mapping[str, Tensor] | Sequence[Mapping[str, Any]],
    direction: Directions | str | Path,
    *,
    cache_dir: str | Path | None = SVD_CACHE,
) -> Tensor:
    """The cosine of every sample's gradient with the direction, (G,) on the CPU; NaN for a gradient that is 0.

    One forward and backward for all samples. The model stays as it is: weights, modes and `.grad`.

    >>> policy = probe.load("organism")
    >>> rows = [{"prompt": "Add 1 and 2.", "completion": answer} for answer in ("3", "raise SystemExit(0)")]
    >>> probe.cosines(policy, rows, "v_hack").shape
    torch.Size([2])

    Args:
        model: what `probe.load` gives, or a causal model of transformers, with or without adapters of peft.
        batch: `input_ids` and `labels` (G, T), -100 where a token has no loss, and an `attention_mask` where there is
            padding on either side; with a policy also rows of `prompt` (a text or messages) and `completion`.
        direction: of the weights below the adapters of `model`; or its file, or its name in out/directions.
        cache_dir: the folder where `probe.extract` left the SVDs; None computes them.

    Raises:
        InputError: directions of other weights, labels that are not of `input_ids`, a sample without a completion.
    """
    where, directions = known_directions(direction)
    loaded: Any = model.model if isinstance(model, Policy) else model
    fingerprint = directions.metadata["fingerprint"]
    layers = target_layers(loaded, fingerprint["targets"])
    frames = make_frames(where, layers, fingerprint, None if cache_dir is None else Path(cache_dir))
    device = next(loaded.parameters()).device
    samples = _of_tensors(batch) if isinstance(batch, Mapping) else _of_texts(model, batch)
    gradients = per_sample_gradients(loaded, {frames.basis: frames}, samples.to(device)).gradients
    return sample_cosines(gradients[frames.basis], directions.to(device).vectors).cos.cpu()


def _of_tensors(batch: Mapping[str, Tensor]) -> Batch:
    """A batch of transformers; padding, wherever it is, is put on the right."""
    ids = batch["input_ids"].cpu()
    labels = batch.get("labels", ids).cpu()
    is_token = batch.get("attention_mask", torch.ones_like(ids)).cpu().bool()
    if labels.shape != ids.shape or is_token.shape != ids.shape or ids.ndim != 2:
        found = ", ".join(str(tuple(part.shape)) for part in (ids, labels, is_token))
        raise InputError("batch", expected="input_ids, labels and attention_mask of one shape (G, T)", found=found)
    has_loss = is_token & (labels != IGNORED)
    if not torch.equal(labels[has_loss], ids[has_loss]):
        fix = "give the labels of transformers, which are not shifted"
        raise InputError("batch labels", expected=f"the ids of input_ids, or {IGNORED}", found="others", fix=fix)
    prompts, completions, scored = [], [], []
    for row, kept, with_loss in zip(ids, is_token, has_loss, strict=True):
        # Nothing predicts the first token.
        prompts.append(row[kept][:1].tolist())
        completions.append(row[kept][1:].tolist())
        scored.append(with_loss[kept][1:])
    whole = make_batch(prompts, completions, 0)
    completion_mask = torch.zeros_like(whole.completion_mask)
    for number, with_loss in enumerate(scored):
        if not with_loss.any():
            raise InputError(f"batch sample {number}", expected="a token with a label", found="none")
        completion_mask[number, 1 : 1 + len(with_loss)] = with_loss
    return Batch(
        ids=whole.ids, attention_mask=whole.attention_mask, completion_mask=completion_mask, lengths=whole.lengths
    )


def _of_texts(policy: nn.Module | Policy, rows: Sequence[Mapping[str, Any]]) -> Batch:
    """Prompts through the chat template of the policy, and written completions."""
    if not isinstance(policy, Policy):
        fix = "give tensors, or what probe.load gives, which has a tokenizer"
        raise InputError("batch", expected="input_ids and labels", found=type(rows).__name__, fix=fix)
    prompts, completions = [], []
    for number, row in enumerate(rows):
        if missing := [key for key in ("prompt", "completion") if row.get(key) is None]:
            raise InputError(f"batch sample {number}", expected="prompt and completion", found=f"no {missing[0]}")
        prompts.append(policy.render(messages_of(row["prompt"]))[1])
        completions.append(policy.completion_ids(answer_of(row["completion"])))
    return make_batch(prompts, completions, policy.pad_id)
