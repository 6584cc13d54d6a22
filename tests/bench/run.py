"""`make bench`: ratios measured side by side in one run, on the embedded organism. Medians of interleaved runs.

1. per-sample gradients: one batched pass / plain frozen forward and backward of the same tokens (the limit)
2. the same batched pass / the loop of single-sample backwards through the adapter (what it replaces)
3. grading: see bench_grading.py, which also runs alone
4. sampling: tokens a second
"""

import torch
from bench_grading import grading
from timing import interleaved, seconds

from extraction.adapters.coordinates import attach
from extraction.batch import Batch, make_batch
from extraction.gradients import frozen, per_sample_gradients
from extraction.logprobs import completion_logprobs
from replay_pools.policy import Policy, load_policy
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.sampling import Sampler, sample

REPEATS = 15


def limit(coordinates, batch: Batch) -> None:
    """A frozen forward and backward down to the embeddings: nothing per sample, no adapter."""
    embeddings = coordinates.model.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda _m, _i, output: output.requires_grad_())
    try:
        with frozen(coordinates.model), coordinates.model.disable_adapter():
            logprobs = completion_logprobs(coordinates.model, batch.ids, batch.attention_mask, batch.completion_mask)
            (-logprobs.sum()).backward()
    finally:
        handle.remove()


def loop(coordinates, batch: Batch) -> None:
    """One backward a sample through the adapter's own parameters."""
    for i in range(len(batch)):
        row = batch.rows(i, i + 1)
        logprobs = completion_logprobs(coordinates.model, row.ids, row.attention_mask, row.completion_mask)
        torch.autograd.grad(-logprobs.sum(), coordinates.parameters())


def gradients(basis: str) -> None:
    policy = load_policy("organism")
    options = {"rank": 32, "train_a": False} if basis == "lora" else {"cache_dir": None}
    coordinates = attach(policy.model, basis=basis, model_id="organism", **options)
    rollouts = open_pool(BUILTIN / "teacher").steps[0]
    batch = make_batch([r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts], policy.pad_id)
    times = interleaved(
        REPEATS,
        engine=lambda: per_sample_gradients(coordinates, batch),
        limit=lambda: limit(coordinates, batch),
        loop=lambda: loop(coordinates, batch),
    )
    engine = times["engine"]
    print(f"{basis:>5}: engine / limit {engine / times['limit']:.2f}   loop / engine {times['loop'] / engine:.2f}")


def sampling(policy: Policy) -> None:
    prompts = [group[0].prompt_ids for group in open_pool(BUILTIN / "base").steps for _ in range(3)]
    completions = []
    taken = seconds(lambda: completions.extend(sample(policy, prompts, Sampler(max_new_tokens=64), seed=0)))
    print(f"sampling: {sum(len(c.ids) for c in completions) / taken:.0f} tokens a second in a batch of {len(prompts)}")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {REPEATS} interleaved runs")
    gradients("svd")
    gradients("lora")
    grading()
    sampling(load_policy("organism"))
