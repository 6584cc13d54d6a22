"""Sampling against transformers' `generate`, side by side: python tests/bench/bench_sampling.py

Both make the same completions of the same prompts (`generate` draws from laws in which one token is possible), so that
the ratio is one of work and not of luck. One thread, CPU seconds, the best of interleaved runs.
"""

from collections.abc import Sequence

import torch
from bench_engine import FULL, QUICK, model_of
from timing import interleaved, is_quick, show
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessorList

from replay_pools.policy.load import Policy, load_policy
from replay_pools.pool import BUILTIN, Sampler, open_pool
from replay_pools.rollout import Completion
from replay_pools.sampling import LocalEngine

GROUP = 8


def generated(policy: Policy, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> Tensor:
    """The completions, made by `generate` in one left-padded batch."""

    def padded(rows: Sequence[Sequence[int]], value: int, side: str) -> Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], True, value, padding_side=side)

    ids = padded(prompts, policy.pad_id, "left")
    wanted = padded([completion.ids for completion in completions], policy.pad_id, "right")

    def forced(input_ids: Tensor, scores: Tensor) -> Tensor:
        now = wanted[:, input_ids.shape[1] - ids.shape[1], None]
        return torch.full_like(scores, -torch.inf).scatter(1, now, 0.0)

    return policy.model.generate(
        ids,
        attention_mask=padded([[1] * len(prompt) for prompt in prompts], 0, "left"),
        generation_config=GenerationConfig(
            do_sample=True,
            max_new_tokens=wanted.shape[1],
            eos_token_id=list(policy.eos_ids),
            pad_token_id=policy.pad_id,
        ),
        logits_processor=LogitsProcessorList([forced]),
    )


def compare(name: str, policy: Policy, prompts: Sequence[Sequence[int]], tokens: int, repeats: int) -> None:
    """Print tokens a second of both ways."""
    rows, sampler = [prompt for prompt in prompts for _ in range(GROUP)], Sampler(max_new_tokens=tokens)
    completions = LocalEngine(policy).sample(rows, sampler, seeds=range(len(rows)))
    made = generated(policy, rows, completions)[:, max(map(len, rows)) :].tolist()
    assert all(ids[: len(c.ids)] == c.ids for ids, c in zip(made, completions, strict=True))
    ways = {
        "generate": lambda: generated(policy, rows, completions),
        "sample": lambda: LocalEngine(policy).sample(rows, sampler, seeds=range(len(rows))),
    }
    number = sum(len(completion.ids) for completion in completions)
    speed = {way: number / taken.cpu for way, taken in interleaved(ways, repeats, warm_up=False).items()}
    show(f"{name}, {len(prompts)} x {GROUP} rollouts", ratio=speed["sample"] / speed["generate"], **speed)


def main() -> None:
    """The organism, and random weights in SmolLM2's shape with 10 layers, one of whose ids in 60 ends a turn."""
    quick = is_quick(__doc__)
    torch.set_num_threads(1)
    organism, pool = load_policy("organism"), open_pool(BUILTIN / "base")
    prompts = [group[0].prompt_ids for group in pool.steps[: 1 if quick else 8]]
    repeats, tokens = (1, 8) if quick else (3, 160)
    print("tokens a CPU second")
    compare("organism", organism, prompts, tokens, repeats)
    shape = QUICK if quick else FULL._replace(layers=10)
    model, generator = model_of(shape), torch.Generator().manual_seed(1)
    model.generation_config.eos_token_id = list(range(0, shape.vocabulary, 60))
    drawn = [torch.randint(1, shape.vocabulary, (n,), generator=generator).tolist() for n in shape.prompts[::2]]
    policy = Policy(organism.tokenizer, "smollm2", model.generation_config, model, None, "")
    compare("SmolLM2's shape", policy, drawn, tokens, repeats)


if __name__ == "__main__":
    main()
