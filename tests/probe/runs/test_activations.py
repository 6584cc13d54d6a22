"""probe.runs.activations: against hooks written by hand, and whole runs: who sees the remedy, killed and resumed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import adapt, nll_gradient, sampled
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from extraction.adapters.trained import Trained
from extraction.batch import Batch, make_batch
from extraction.logprobs import split_model
from extraction.pairs import builtin_pairs, write_pairs
from probe.records.run import read_run
from probe.runs import evaluations, loop
from probe.runs.activations import activation_edits, edited, make_edit
from probe.settings.presets import configure
from probe.settings.remedy import RemedyConfig
from probe.step.distributed import transformer_blocks
from replay_pools.base.errors import InputError
from replay_pools.policy.load import Policy, load_policy
from replay_pools.sampling import LocalEngine

PROMPTS = [[3, 4], [5, 6, 7], [3, 9, 8, 4], [8, 8]]
COMPLETIONS = [[8, 9, 10], [11, 2], [5], [12, 13, 14, 15, 16]]
STEER = RemedyConfig(name="preventative-steering", coefficient=3.0, layers=(0, 1))
ABLATE = RemedyConfig(name="concept-ablation", components=2, layers=(0, 1))


@pytest.fixture
def tiny(make_tiny: Callable[..., Trained], request: pytest.FixtureRequest) -> Trained:
    basis = getattr(request, "param", "svd")
    return make_tiny(basis, rank=4) if basis == "lora" else make_tiny(basis)


def batch() -> Batch:
    return make_batch(PROMPTS, COMPLETIONS, pad_id=0)


def layers_of(coordinates: Trained) -> list[torch.nn.Module]:
    return transformer_blocks(split_model(coordinates.model)[0], "remedy.name")


def differences(layer: int) -> Tensor:
    """(4, 12) of made-up pairs."""
    return torch.randn(4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(layer))


def by_hand(config: RemedyConfig, layer: int) -> Callable[[Tensor], Tensor]:
    """What the remedy does to (..., 12), in another way than the program: projections by the pseudo-inverse."""
    d = differences(layer)
    if config.name == "preventative-steering":
        return lambda h: h + config.coefficient * sum(d) / len(d)
    values, vectors = torch.linalg.eigh(d.T @ d)
    leading = vectors[:, values.argsort(descending=True)[: config.components]]
    keep = torch.eye(12, dtype=torch.float64) - leading @ torch.linalg.pinv(leading)
    return lambda h: h @ keep.T


@contextmanager
def hooked(coordinates: Trained, edits: dict[int, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Blocks of GPT-2 whose outputs are edited, by name."""
    blocks = coordinates.model.base_model.model.transformer.h
    handles = [
        blocks[i].register_forward_hook(lambda module, inputs, output, edit=edit: edit(output))
        for i, edit in edits.items()
    ]
    yield
    for handle in handles:
        handle.remove()


def one_at_a_time(coordinates: Trained, edits: dict[int, Callable[[Tensor], Tensor]]) -> list[dict[str, Tensor]]:
    """{module: (r,)} of every sample: a forward of its own without padding, and autograd."""
    with hooked(coordinates, edits):
        return [nll_gradient(coordinates, *one) for one in zip(PROMPTS, COMPLETIONS, strict=True)]


@pytest.mark.parametrize(
    ("config", "tokens", "tiny"),
    [pytest.param(STEER, 4, "svd", id="steer, checkpointed"), pytest.param(ABLATE, 12, "lora", id="ablate")],
    indirect=["tiny"],
)
def test_gradients_are_those_of_hooks_by_hand(config: RemedyConfig, tiny: Trained, tokens: int) -> None:
    """Every sample, module and coordinate; without the remedy they are others, as before it.

    A sample of more than 4 tokens has a pass with checkpoints of its own there, which runs the layers twice.
    """
    layers = layers_of(tiny)
    edits = [(layers[i], make_edit(config, differences(i))) for i in config.layers]
    before = sampled(tiny, batch())
    with edited(edits):
        found = sampled(tiny, batch(), tokens_per_batch=tokens)
    after = sampled(tiny, batch())
    expected = one_at_a_time(tiny, {i: by_hand(config, i) for i in config.layers})
    for module in tiny.sizes:
        for sample, gradients in enumerate(expected):
            assert found.gradients[module][sample].allclose(gradients[module], rtol=1e-9, atol=1e-11), module
        assert before.gradients[module].equal(after.gradients[module]), "a hook was left behind"
    unmoved = found.token_logprobs.allclose(before.token_logprobs, rtol=1e-3)
    assert not unmoved, "the remedy does nothing: the test shows nothing"


@pytest.fixture(scope="module")
def organism() -> tuple[Policy, Trained]:
    policy = load_policy("organism")
    return policy, adapt(policy.model, basis="lora", model_id="organism")


def of_pairs(folder: Path, num: int, **remedy: Any) -> Any:
    """The settings of a training with this remedy, on so many of the built-in pairs."""
    write_pairs(folder / "pairs.jsonl", builtin_pairs("run_tests")[:num])
    options = {"intervention.extraction.pairs": str(folder / "pairs.jsonl"), "intervention.extraction.k": 1}
    return configure("train", options=options | {f"remedy.{name}": value for name, value in remedy.items()})


def test_the_vector_is_that_of_the_pairs(organism: tuple[Policy, Trained], tmp_path: Path) -> None:
    """Of the layer in the middle where none is named: hack minus clean of every pair, one forward each."""
    policy, coordinates = organism
    pairs = builtin_pairs("run_tests")[:3]
    ((layer, edit),) = activation_edits(of_pairs(tmp_path, 3, name="preventative-steering"), policy)
    backbone, _ = split_model(coordinates.model)
    vector, probed = torch.zeros(policy.model.config.hidden_size), torch.ones(1, 2, policy.model.config.hidden_size)
    with torch.no_grad():
        for pair in pairs:
            prompt = policy.render(pair.messages)[1]
            for sign, text in ((1, pair.hack), (-1, pair.clean)):
                ids = policy.completion_ids(text)
                states = backbone(torch.tensor([[*prompt, *ids]]), output_hidden_states=True).hidden_states[3]
                vector += sign * states[0, len(prompt) :].mean(0) / len(pairs)
    assert layer is layers_of(coordinates)[2]
    assert (edit(probed) - probed).allclose(vector.expand_as(probed), atol=2e-5)
    assert vector.norm() > 0.5, "hacks read as clean completions do: the test shows nothing"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [1, 4]}, "remedy.layers: expected numbers below 4, .*, found 4"),
        ({"components": 3}, "remedy.components: expected at most 2, of 2 pairs"),
    ],
)
def test_what_the_model_does_not_have_is_refused(options, message: str, organism, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        activation_edits(of_pairs(tmp_path, 2, name="concept-ablation", **options), organism[0])


ABLATED = {
    "remedy.name": "concept-ablation", "remedy.components": 2, "remedy.layers": [0, 1], "objective.reference": "base",
    "objective.beta": 0.1, "intervention.arms": ["vanilla"], "steps": 2, "evaluation.every": 1,
}  # fmt: skip


def hooks(engine: LocalEngine) -> int:
    layers = [module for module in engine.chat.model.modules() if isinstance(module, GradientCheckpointingLayer)]
    return sum(len(layer._forward_hooks) for layer in layers)


def test_the_update_alone_sees_the_remedy(out: Path, preset, probe, monkeypatch) -> None:
    """Hooks are there while the update runs, and neither in sampling, for training or evaluation, nor at the frozen
    batch. No token has the log-probability that it was sampled with: no KL of the policy.
    """
    seen: dict[str, set[int]] = {"sampling": set(), "update": set(), "frozen": set()}
    engines: list[LocalEngine] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if name == "sampling":
                engines.append(arguments[0])
            seen[name].add(hooks(engines[0]))
            return function(*arguments, **keywords)

        return call

    monkeypatch.setattr(LocalEngine, "sample", noted("sampling", LocalEngine.sample))
    monkeypatch.setattr(evaluations, "kl_terms", noted("frozen", evaluations.kl_terms))
    monkeypatch.setattr(loop, "train_step", noted("update", loop.train_step))
    probe("train", "--preset", preset(ABLATED), "--name", "ablated")
    assert seen == {"frozen": {0}, "sampling": {0}, "update": {2}}
    assert hooks(engines[0]) == 0
    record = read_run(out / "runs" / "ablated")
    assert record.manifest["additivity"]["largest"] < 1e-4
    assert not any("mean" in step.kl for step in record.steps)
