"""Remedies in activation space: the update's forward passes see changed hidden states, evaluations do not.

h is the output of a decoder layer at a token. d_j of pair j is the mean of h over the tokens of its hack minus the mean
over its clean completion, under the policy at the start, on the pairs that directions are extracted from:

    preventative-steering   h <- h + coefficient v     v = mean of d_j over pairs
    concept-ablation        h <- h - U U^T h           U: the first `components` right singular vectors of the rows d_j

Preventative steering (Chen et al. 2025, Persona vectors, arXiv 2507.21509) adds the trait during fine-tuning, so that
the weights need not learn it; the authors' example adds 5 v at one layer. Concept ablation (Casademunt et al. 2025,
arXiv 2507.16795) projects unwanted directions out of the residual stream, inside the graph, so that no gradient flows
through them. Its authors chose components of the tuned model minus its base; here they are the first ones of hack minus
clean, not centred, because centring would remove what all hacks share. An ablation to 0 may itself steer if the base's
projection is not 0 (Chen et al., appendix J.1).

Both act on every token of the tuned texts. The deployed policy samples without them, so that the update, in all its
passes, is off-policy. Evaluations, the frozen probe batch and refreshed directions never see them either.
Shapes: n pairs, G samples, T tokens, d the hidden size, k components.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from extraction.batch import Batch, Rows
from extraction.library import pair_batch
from extraction.logprobs import completion_logprobs, scatter_tokens, split_model
from extraction.pairs import selected_pairs
from extraction.passes import each_pass, zeros
from probe.settings.remedy import RemedyConfig
from probe.settings.verbs import StepConfig
from probe.step.distributed import transformer_blocks
from replay_pools.base.errors import InputError
from replay_pools.policy.load import Policy

Edit = Callable[[Tensor], Tensor]  # hidden states (..., d) -> changed hidden states
Edits = Sequence[tuple[nn.Module, Edit]]


def activation_edits(config: StepConfig, policy: Policy) -> Edits:
    """Return the changes of the run's remedy, from its pairs under the policy at the start.

    Empty without a remedy, or with one that does not change activations.

    Raises:
        InputError: a layer that the model does not have, or more components than pairs or hidden sizes.
    """
    remedy = config.remedy
    if remedy is None or not remedy.traits.changes_activations:
        return ()
    pairs = [pair for pair in selected_pairs(config.intervention.extraction) if not pair.held_out]
    layers = transformer_blocks(split_model(policy.model)[0], "remedy.name")
    numbers = remedy.layers or (len(layers) // 2,)
    if wrong := [number for number in numbers if number >= len(layers)]:
        expected = f"numbers below {len(layers)}, the model's layers"
        raise InputError("remedy.layers", expected=expected, found=str(wrong[0]))
    _, means = scored_states(policy.model, pair_batch(policy, pairs), {number: layers[number] for number in numbers})
    return [(layers[i], make_edit(remedy, rows[: len(pairs)] - rows[len(pairs) :])) for i, rows in means.items()]


def scored_states(
    model: PreTrainedModel, batch: Batch, layers: Mapping[int, nn.Module]
) -> tuple[Tensor, dict[int, Tensor]]:
    """Run one forward: log-probabilities (G, T), 0 outside of the scored tokens, and mean hidden states of layers.

    The means are over the scored tokens of every sample, {layer: (G, d)}, in float64.
    """
    backbone, _ = split_model(model)
    logprobs, means = zeros(backbone, *batch.ids.shape), dict[int, Tensor]()

    def run(rows: Rows, _is_needed: bool) -> None:
        states: dict[int, Tensor] = {}

        def watch(number: int, hidden: Tensor) -> Tensor:
            states[number] = hidden
            return hidden

        with edited([(layer, partial(watch, number)) for number, layer in layers.items()]):
            of_tokens = completion_logprobs(model, rows)
        logprobs[rows.samples] = scatter_tokens(of_tokens, batch.completion_mask[rows.samples])
        for number, hidden in states.items():
            hidden = hidden.flatten(0, -2).double()
            into = means.setdefault(number, hidden.new_zeros(len(batch), hidden.shape[1]))
            for sample, tokens in zip(rows.samples.tolist(), rows.segments.split(hidden), strict=True):
                into[sample] = tokens[batch.completion_mask[sample, : len(tokens)]].mean(0)

    with torch.no_grad():
        each_pass(model, batch, run)
    return logprobs, means


def make_edit(config: RemedyConfig, differences: Tensor) -> Edit:
    """Make the remedy's change of hidden states from the pairs' differences (n, d)."""
    if config.name == "preventative-steering":
        shift = config.coefficient * differences.mean(0)
        return lambda hidden: hidden + shift.to(hidden)
    most = min(differences.shape)
    if config.components > most:
        expected = f"at most {most}, of {differences.shape[0]} pairs and {differences.shape[1]} hidden sizes"
        raise InputError("remedy.components", expected=expected, found=str(config.components))
    directions = torch.linalg.svd(differences, full_matrices=False).Vh[: config.components]  # (k, d), orthonormal

    def ablated(hidden: Tensor) -> Tensor:
        V = directions.to(hidden)
        return hidden - (hidden @ V.T) @ V

    return ablated


@contextmanager
def edited(edits: Edits) -> Iterator[None]:
    """Apply each edit to the output of its layer while open."""
    with ExitStack() as stack:
        for layer, edit in edits:
            stack.callback(layer.register_forward_hook(partial(_hook, edit)).remove)
        yield


def _hook(edit: Edit, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """Edit the hidden states, which some architectures return alone and others first in a tuple."""
    return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)
