"""Sampling against the slow way: one row at a time, every prefix read anew, the same noise."""

import pytest
import torch
from scipy.stats import chisquare
from tiny_models import ARCHITECTURES, build_model
from transformers import RwkvConfig, RwkvForCausalLM

from replay_pools.base.errors import InputError
from replay_pools.environments.loopholes import render_messages
from replay_pools.environments.minicode import minicode_problems
from replay_pools.policy.load import Policy, load_policy
from replay_pools.pool import Sampler
from replay_pools.rollout import Completion
from replay_pools.sampling import LocalEngine, draw, next_token_logprobs, row_bytes, split, uniforms

PROMPTS = [[5, 6, 7], [8] * 9, [5, 6, 7], [9, 11], [8] * 9, [5, 6, 7], [3], [12, 13, 14, 15, 16]]


@pytest.fixture(scope="module")
def policy(small: str) -> Policy:
    return load_policy(small)


@pytest.fixture(scope="module")
def prompts(policy: Policy) -> list[list[int]]:
    """Four prompts of different lengths, five rows each."""
    items = minicode_problems("eval")[:4]
    return [policy.render(render_messages(item.problem, "none", hint=False))[1] for item in items for _ in range(5)]


@torch.no_grad()
def slow(policy: Policy, prompt: list[int], sampler: Sampler, seed: int) -> Completion:
    noise, ids, logprobs = uniforms(seed, sampler.max_new_tokens), [], []
    while len(ids) < sampler.max_new_tokens and not (ids and ids[-1] in policy.eos_ids):
        logits = policy.model(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[:, -1]
        law = next_token_logprobs(logits, sampler)
        ids.append(int(draw(law, noise[len(ids)][None])))
        logprobs.append(float(law[0, ids[-1]]))
    return Completion(ids=ids, logprobs=logprobs, finish_reason="stop" if ids[-1] in policy.eos_ids else "length")


def assert_alike(sampled: list[Completion], expected: list[Completion]) -> None:
    """The same ids; log-probabilities up to rounding."""
    for one, other in zip(sampled, expected, strict=True):
        assert (one.ids, one.finish_reason) == (other.ids, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


# Fast: two that store what they cache in other ways, a window, and two states that are no keys and values.
QUICK = ("gpt2", "qwen3", "recurrence")


@pytest.mark.parametrize(
    "architecture", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
def test_rows_are_sampled_as_one_by_one_without_a_cache(policy: Policy, architecture: str) -> None:
    """Ragged and repeated prompts, rows that end early, some of which are dropped."""
    model = build_model(architecture).requires_grad_(False)
    other = Policy(policy.tokenizer, architecture, model.generation_config, model, None, "")
    prompts, engine = PROMPTS * 2, LocalEngine(other)
    for sampler in (Sampler(temperature=2.0, max_new_tokens=20), Sampler(top_k=9, top_p=0.9, max_new_tokens=1)):
        expected = [slow(other, prompt, sampler, seed) for seed, prompt in enumerate(prompts)]
        assert_alike(engine.sample(prompts, sampler, seeds=range(len(prompts))), expected)
        ends = {len(completion.ids) for completion in expected}
        assert len(ends) > 2 or sampler.max_new_tokens == 1, "no row ends early: nothing is dropped"


def test_a_completion_depends_on_its_prompt_and_seed_alone(policy: Policy, prompts: list[list[int]]) -> None:
    sampler, seeds = Sampler(temperature=2.0, max_new_tokens=12), range(100, 120)
    whole, parts = LocalEngine(policy).sample(prompts, sampler, seeds=seeds), []
    for start, stop in ((0, 1), (1, 8), (8, 20)):
        parts += LocalEngine(policy).sample(prompts[start:stop], sampler, seeds=seeds[start:stop])
    assert_alike(parts, whole)
    assert len({tuple(completion.ids) for completion in whole}) == len(whole), "rows share their noise"


def test_a_batch_is_split_by_the_memory_of_its_rows(
    policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The completions stay; the memory of a row is what the cache of transformers needs for it."""
    cached = policy.model(torch.tensor([[5] * 10])).cache
    needed = sum(states.nbytes for layer in cached.layers for states in (layer.keys, layer.values))
    assert row_bytes(policy.model, 10) - row_bytes(policy.model, 0) == needed
    engine, sampler = LocalEngine(policy), Sampler(max_new_tokens=12)
    whole = engine.sample(prompts, sampler, seeds=range(20))
    budget = 7 * row_bytes(policy.model, max(map(len, prompts)) + 11)
    monkeypatch.setattr("replay_pools.sampling.batch_bytes", lambda *_: budget)
    assert_alike(engine.sample(prompts, sampler, seeds=range(20)), whole)
    assert [len(rows) for rows in split(policy.model, [*map(len, prompts)], 12, budget)][:2] == [7, 7]


def test_longer_prompts_share_a_batch(policy: Policy) -> None:
    lengths, row = [3, 90, 5, 80, 4], row_bytes(policy.model, 90 + 9)
    assert list(split(policy.model, lengths, 10, 2 * row)) == [[1, 3], [2, 4, 0]]
    assert list(split(policy.model, lengths, 10, 1)) == [[1], [3], [2], [4], [0]]


def test_an_architecture_with_a_cache_of_its_own_is_refused(policy: Policy) -> None:
    model = RwkvForCausalLM(RwkvConfig(vocab_size=61, hidden_size=24, num_hidden_layers=2))
    with pytest.raises(InputError, match="found RwkvForCausalLM"):
        LocalEngine(Policy(policy.tokenizer, "rwkv", None, model, None, "")).sample([[5]], Sampler(), seeds=[0])


def test_tokens_are_as_frequent_as_their_law_says() -> None:
    """Chi-square on 40,000 draws from a law of 12 tokens, of which some are impossible, also the first and the last."""
    logits = torch.tensor([-torch.inf, 0.0, 1.0, -2.0, 0.5, -torch.inf, -torch.inf, 3.0, -4.0, 0.1, 0.2, -torch.inf])
    law = torch.log_softmax(logits, -1)
    tokens = draw(law.expand(40_000, -1), uniforms(7, 40_000))
    counts = torch.bincount(tokens, minlength=12)
    possible = law.isfinite()
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], 40_000 * law[possible].double().softmax(0)).pvalue > 0.01
    extremes = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw(law.expand(2, -1), extremes).tolist() == [1, 10], "the first and the last possible token"


def test_laws_are_those_of_temperature_top_k_and_top_p() -> None:
    """Against plain arithmetic on a law with distinct probabilities."""
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.25, 0.05]]))
    ((_, p, q, r, _),) = next_token_logprobs(logits, Sampler(top_k=3)).exp().tolist()
    assert [p, q, r] == pytest.approx([0.4 / 0.85, 0.2 / 0.85, 0.25 / 0.85])
    (kept,) = next_token_logprobs(logits, Sampler(top_p=0.6)).exp().tolist()
    assert kept == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0])
    cold = torch.tensor([[0.1, 0.4, 0.2, 0.25, 0.05]]) ** 2
    torch.testing.assert_close(next_token_logprobs(logits, Sampler(temperature=0.5)).exp(), cold / cold.sum())
