import pytest
import torch
from adapted import token_logprobs
from transformers import AutoConfig, AutoModelForCausalLM

from extraction.batch import make_batch, make_rows
from extraction.logprobs import WIDE_ROWS, chosen_logprobs, completion_logprobs, split_model, wide_logprobs
from replay_pools.base.errors import InputError


def score(model, batch, layout="padded"):
    return completion_logprobs(model, make_rows(batch, layout))


@pytest.mark.parametrize("chunk_size", [7, 512])
def test_equals_the_full_log_softmax(build_model, architecture, rollouts, chunk_size, monkeypatch):
    """Padding, chunks and the gathering of positions change nothing: values and gradients, float64."""
    monkeypatch.setattr("extraction.logprobs.CHUNK_SIZE", chunk_size)
    model = build_model(architecture, torch.float64)
    model.get_output_embeddings().requires_grad_(False)
    expected = torch.cat([token_logprobs(model, *one) for one in zip(*rollouts, strict=True)])
    found = score(model, make_batch(*rollouts, pad_id=2))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg="off by one position, or padding leaks")
    weights = torch.linspace(-1, 2, len(expected), dtype=torch.float64)
    # Norms are left out: architectures compute theirs in float32, and so their weights' gradients.
    parameters = [p for p in model.parameters() if p.requires_grad and p.ndim == 2]
    for ours, theirs in zip(
        torch.autograd.grad((weights * found).sum(), parameters),
        torch.autograd.grad((weights * expected).sum(), parameters),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_chosen_logprobs_are_the_log_softmax(dtype, rtol):
    """Values, and derivatives as autograd has them, of tokens of every rank.

    p = 1 - 1e-5 in float32: both have the relative accuracy of float32, not of 1 - p.
    """
    logits = 4 * torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.cat([logits.argmax(1)[:3], logits.argmin(1)[3:]])
    if dtype == torch.float32:
        logits, targets = torch.tensor([[14.0, 0.25, -1.0, 2.0]]).double(), torch.tensor([0])
    expected = logits.requires_grad_().log_softmax(1).gather(1, targets[:, None]).squeeze(1)
    found, slopes = chosen_logprobs(logits.detach().to(dtype), targets)
    torch.testing.assert_close(found.double(), expected.detach(), rtol=rtol, atol=1e-13 if dtype.itemsize == 8 else 0)
    (expected_slopes,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(slopes.double(), expected_slopes, rtol=rtol, atol=1e-13 if dtype.itemsize == 8 else 0)


def test_no_logits_off_the_completion(build_model, rollouts, monkeypatch):
    """The head never sees more than CHUNK_SIZE states, and in all exactly the completion tokens."""
    monkeypatch.setattr("extraction.logprobs.CHUNK_SIZE", 8)
    model, seen = build_model("llama"), []
    split_model(model)  # whose check, once per model, reads a few tokens more
    model.get_output_embeddings().register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].shape))
    with torch.no_grad():
        score(model, make_batch(*rollouts, pad_id=2))
    assert [shape[0] for shape in seen] == [8, 8, 7]
    with pytest.raises(InputError, match="a frozen head"):  # its own gradient is not computed: a wrong zero
        score(model, make_batch(*rollouts, pad_id=2))


SHAPE = {
    "vocab_size": 31, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
NESTED = {"layer_types": ["full_attention"], "global_head_dim": 8, "hidden_size_per_layer_input": 0}
TRANSFORMED = {
    "gemma2": SHAPE,  # a soft cap
    "gemma4": {
        "text_config": SHAPE | NESTED | {"final_logit_softcapping": 30.0},
        "vision_config": SHAPE,
        "audio_config": None,
    },
    "recurrent_gemma": SHAPE | {"lru_width": 8, "attention_window_size": 8, "block_types": ["attention"]},
    "cohere": SHAPE,  # a scale
    "modernbert-decoder": SHAPE,  # a transformation before the head
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", TRANSFORMED)
def test_transformed_logits_are_refused(kind, dtype):
    """head(hidden) would be another model. The check leaves the random state and the training mode as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **TRANSFORMED[kind])).to(dtype).train()
    model.get_output_embeddings().weight.data *= 1000
    state = torch.random.get_rng_state()
    with pytest.raises(InputError, match="head\\(hidden state\\)"):
        split_model(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.lm_head.training
    if kind == "gemma2":
        model.config.final_logit_softcapping = None
        split_model(model)
        model.config.final_logit_softcapping = 0.1
        with pytest.raises(InputError, match="head\\(hidden state\\)"):
            split_model(model)


def test_a_model_that_cannot_run_is_one_error(build_model, monkeypatch):
    """With what its code met first, such as a kernel that is missing for the dtype."""
    model = build_model("llama")
    monkeypatch.setattr(model.model, "forward", lambda **_: model.no_such_kernel)
    with pytest.raises(InputError, match=r"LlamaForCausalLM: .*AttributeError: .*no_such_kernel"):
        split_model(model)


def test_bf16_logits_in_blocks_are_those_of_one_block():
    """Rows do not depend on one another: more rows than a block give the bits of every row alone."""
    logits = torch.randn(2 * WIDE_ROWS + 3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.arange(len(logits)) % 50
    logprobs, slopes = chosen_logprobs(logits, targets)
    expected_logprobs, expected_slopes = wide_logprobs(logits.float(), targets)
    assert torch.equal(logprobs, expected_logprobs)
    assert torch.equal(slopes, expected_slopes.bfloat16())
