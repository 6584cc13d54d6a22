"""The other numbers of `make bench`, on the embedded organism (the gradient engine: bench_engine.py).

1. grading: see bench_grading.py, which also runs alone
2. sampling: tokens a second
"""

from bench_grading import grading
from timing import seconds

from replay_pools.policy import Policy, load_policy
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.sampling import Sampler, sample


def sampling(policy: Policy) -> None:
    prompts = [group[0].prompt_ids for group in open_pool(BUILTIN / "base").steps for _ in range(3)]
    completions = []
    taken = seconds(lambda: completions.extend(sample(policy, prompts, Sampler(max_new_tokens=64), seed=0)))
    print(f"sampling: {sum(len(c.ids) for c in completions) / taken:.0f} tokens a second in a batch of {len(prompts)}")


if __name__ == "__main__":
    grading()
    sampling(load_policy("organism"))
