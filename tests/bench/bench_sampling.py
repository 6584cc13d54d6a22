"""Sampling against transformers' `generate`, side by side: python tests/bench/bench_sampling.py

Both make the same completions of the same prompts (`generate` draws from laws in which one token is possible), so that
the ratio is one of work and not of luck. One thread, CPU seconds, the best of interleaved runs.
"""

from collections.abc import Sequence

import torch
from bench_engine import FULL, Shape, model_of
from timing import interleaved
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from replay_pools.engines import Sampler
from replay_pools.policy.load import Policy, load_policy
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.rollout import Completion
from replay_pools.sampling import cache_numbers, sample

SHAPE = Shape(layers=10)
GROUP = 8
REPEATS = 3


class Forced(LogitsProcessor):
    """Leaves one token possible for each row: that of its completion, or anything after the completion's end."""

    def __init__(self, completions: Sequence[Completion], width: int) -> None:
        self.width = width  # of the padded prompts
        longest = max(len(completion.ids) for completion in completions)
        self.ids = torch.tensor([c.ids + c.ids[-1:] * (longest - len(c.ids)) for c in completions])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        wanted = self.ids[:, input_ids.shape[1] - self.width, None]
        return torch.full_like(scores, -torch.inf).scatter(1, wanted.to(scores.device), 0.0)


@torch.no_grad()
def generated(policy: Policy, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> Tensor:
    """The completions, made by `generate` in one left-padded batch."""
    width = max(map(len, prompts))
    padded = [[policy.pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    ids = torch.tensor(padded, device=policy.device)
    masked = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    mask = torch.tensor(masked, device=policy.device)
    config = GenerationConfig(
        do_sample=True,
        max_new_tokens=max(len(completion.ids) for completion in completions),
        eos_token_id=list(policy.eos_ids),
        pad_token_id=policy.pad_id,
    )
    forced = LogitsProcessorList([Forced(completions, width)])
    return policy.model.generate(ids, attention_mask=mask, generation_config=config, logits_processor=forced)


def compare(name: str, policy: Policy, prompts: Sequence[Sequence[int]], sampler: Sampler) -> None:
    """Print tokens a second of both ways, and the largest cache of each."""
    rows = [prompt for prompt in prompts for _ in range(GROUP)]
    completions = sample(policy, rows, sampler, seeds=range(len(rows)))
    made = generated(policy, rows, completions)[:, max(map(len, rows)) :].tolist()
    assert all(ids[: len(c.ids)] == c.ids for ids, c in zip(made, completions, strict=True))
    taken = interleaved(
        {
            "generate": lambda: generated(policy, rows, completions),
            "sample": lambda: sample(policy, rows, sampler, seeds=range(len(rows))),
        },
        REPEATS,
        warm_up=False,
    )
    lengths = [len(completion.ids) for completion in completions]
    speed = {way: sum(lengths) / seconds.cpu for way, seconds in taken.items()}
    width = max(map(len, prompts))
    position = len(rows) * cache_numbers(policy.model.config) * policy.model.dtype.itemsize / 1e6
    print(
        f"{name}, {len(prompts)} x {GROUP} rollouts of {min(lengths)} to {max(lengths)} tokens: "
        f"{speed['sample']:.0f} tokens a second, generate {speed['generate']:.0f}, "
        f"ratio {speed['sample'] / speed['generate']:.2f}; cache {position * (width + sampler.max_new_tokens - 1):.1f} "
        f"MB, generate {position * (width + max(lengths) - 1):.1f} MB, beside it a layer at every step"
    )


def smollm2() -> Policy:
    """Random weights in SmolLM2's shape; one id in 60 ends a turn, so that the completions end one by one."""
    model = model_of(SHAPE)
    model.generation_config.eos_token_id = list(range(0, SHAPE.vocabulary, 60))
    return Policy(load_policy("organism").tokenizer, "smollm2", model.generation_config, model, None, "")


def sampling() -> None:
    """Both models."""
    pool = open_pool(BUILTIN / "base")
    compare("organism", load_policy("organism"), [g[0].prompt_ids for g in pool.steps[:8]], Sampler(max_new_tokens=160))
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, SHAPE.vocabulary, (n,), generator=generator).tolist() for n in FULL.prompts[::2]]
    compare(f"SmolLM2's shape, {SHAPE.layers} layers", smollm2(), prompts, Sampler(max_new_tokens=128))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sampling()
