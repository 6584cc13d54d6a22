"""Packed rows against the samples one at a time, through architectures that do and do not keep them apart."""

import pytest
import torch
from tiny_models import build_model
from transformers import LlamaConfig, LlamaForCausalLM

from extraction.attention import attending, equal_when_packed, packs
from extraction.batch import Span, make_batch, make_rows
from extraction.logprobs import completion_logprobs, split_model
from extraction.passes import make_plan

LONG = {
    "vocab_size": 31, "hidden_size": 12, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 8, "initializer_range": 0.5,
}  # fmt: skip


def hidden(backbone, batch, layout, samples=None):
    with torch.no_grad(), attending(backbone, layout):
        return backbone(**make_rows(batch, layout, samples).inputs, use_cache=False).last_hidden_state.flatten(0, 1)


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "gemma3", pytest.param("cohere2", marks=pytest.mark.slow)])
def test_a_shared_prompt_is_read_as_ones_own(name, rollouts):
    """Also behind a window that is shorter than the prompt."""
    backbone, (prompts, completions) = built(name), rollouts
    batch = make_batch([prompts[0], *prompts[:2], prompts[1], prompts[0]], completions, pad_id=2)
    wanted = [make_rows(batch, "padded", [i]) for i in range(len(batch))]
    expected = torch.cat([hidden(backbone, batch, "padded", [i])[row.predicting] for i, row in enumerate(wanted)])
    rows = make_rows(batch, "shared")
    assert rows.inputs["input_ids"].numel() < batch.lengths.sum()
    torch.testing.assert_close(hidden(backbone, batch, "shared")[rows.predicting], expected, rtol=1e-6, atol=1e-6)


def built(architecture):
    return build_model(architecture, torch.float64, moved=0).base_model


@pytest.mark.parametrize("name", ["gemma3", *(pytest.param(n, marks=pytest.mark.slow) for n in ("mistral", "cohere2"))])
def test_windows_are_kept(name, rollouts):
    backbone, batch = built(name), make_batch(*rollouts, pad_id=2)
    expected = torch.cat([hidden(backbone, batch, "padded", [i]) for i in range(len(batch))])
    torch.testing.assert_close(hidden(backbone, batch, "packed"), expected, rtol=1e-6, atol=1e-6)
    backbone.config.sliding_window = 100
    assert not torch.allclose(hidden(backbone, batch, "packed"), expected), "the window has no effect: the test is void"


@pytest.mark.parametrize("name", ["convolution", "recurrence", "qwen3"])
def test_architecture_that_mixes_samples_is_not_packed(name):
    """A convolution and a recurrent state run across the samples of a row; nor is a model that attends eagerly."""
    backbone = built(name)
    if name == "qwen3":
        backbone.config._attn_implementation = "eager"
    before = backbone.config._attn_implementation
    assert not packs(backbone)
    assert backbone.config._attn_implementation == before


@pytest.mark.parametrize("damage", ["positions", "spans", "prompts"])
def test_trial_sees_what_packing_needs(build_model, monkeypatch, damage):
    """GPT-2 with positions that run on, with attention from one sample to those before it, or with none from a
    completion to the prompt that it shares, is not equal.
    """
    backbone = build_model("gpt2").base_model
    assert packs(backbone)

    def damaged(batch, layout, samples=None):
        rows = make_rows(batch, layout, samples)
        if layout == "shared" and damage == "positions":
            rows.inputs["position_ids"] = torch.arange(rows.inputs["input_ids"].numel())[None]
        elif layout == "shared" and damage == "prompts":
            rows.inputs["spans"] = tuple(span._replace(prompt=(0, 0)) for span in rows.inputs["spans"])
        elif layout == "shared":
            rows.inputs["spans"] = (Span(0, rows.inputs["input_ids"].numel()),)
        return rows

    monkeypatch.setattr("extraction.attention.make_rows", damaged)
    assert not equal_when_packed(backbone)


LONGROPE = {"original_max_position_embeddings": 8, "short_factor": [1.0, 1.0, 1.0], "long_factor": [1.0, 3.0, 9.0]}
LENGTHS = ((3, 2), (6, 5), (6, 2), (6, 5), (4, 9), (2, 3))  # prompt and completion tokens; the limit is at 8


@pytest.mark.parametrize("layout", ["shared", "packed", "padded"])
@pytest.mark.parametrize("kind", ["longrope", "dynamic", "default"])
def test_rotation_by_length_is_that_of_a_sample_alone(kind, layout):
    """Each sample as a model gives it that has seen no other, long ones first; float64."""
    table = {"rope_type": kind, "rope_theta": 100.0, "factor": 4.0} | (LONGROPE if kind == "longrope" else {})

    def fresh():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return LlamaForCausalLM(LlamaConfig(**LONG, rope_parameters=table)).double().eval().requires_grad_(False)

    model, expected = fresh(), []
    prompts = [[5 + n] * n for n, _ in LENGTHS]
    completions = [list(range(n, n + length)) for n, (_, length) in enumerate(LENGTHS)]
    batch = make_batch(prompts, completions, pad_id=2)
    for sample in range(len(batch)):
        expected.append(completion_logprobs(fresh(), make_rows(batch, "padded", [sample])))
    backbone, _ = split_model(model)
    plan = make_plan(backbone, batch, layout, 1000, int)
    for samples, _ in plan:
        with attending(backbone, layout):
            found = completion_logprobs(model, make_rows(batch, layout, samples))
        torch.testing.assert_close(found, torch.cat([expected[i] for i in samples]), rtol=1e-9, atol=1e-9)
    assert len(plan) == {"longrope": 2, "dynamic": 3, "default": 1}[kind]
