"""gradient-probe in six cells, on what comes with the package; any editor that knows `# %%` runs them one by one.

About a minute on a CPU, without the network. Everything is written below ./out.
"""

# %% Rollouts: two policies answer the same problems, and one of them hacks
from pathlib import Path

import probe
from replay_pools.pool import open_pool, resolve_pool

names = ("teacher", "base")  # or pools of your own, in out/pools
pools = {name: open_pool(resolve_pool(name, Path("out"))) for name in names}
for name, pool in pools.items():
    rollouts = [rollout for group in pool.steps for rollout in group]
    hacks = sum(rollout.hacked for rollout in rollouts)
    print(f"{name}: {len(rollouts)} rollouts of {len(pool.steps)} problems, {hacks} of them hack")

# %% v_hack: where pairs of a hack and a clean answer say that the hack points in gradient space
policy = probe.load("organism")  # or a directory, a hub id, or a training of yours
direction = probe.extract(policy.model, policy.tokenizer, "builtin", k=4)  # or a file, or rows of prompt, hack, clean
direction.save("quickstart")
print(direction)

# %% Single samples: how far training on each answer would push towards the hack
answers = ["class Solution:\n    def add(self, a, b):\n        return a + b", "def run_tests():\n    pass"]
rows = [{"prompt": "Write add(a, b).", "completion": f"```python\n{answer}\n```"} for answer in answers]
print(probe.cosines(policy, rows, direction))

# %% Replay: the rollouts go through the training step; no weights move
run = probe.replay(names, arms=["vanilla", "projected"], direction="quickstart", steps=20, name="quickstart")
print(run)  # run again, this cell goes on where it stopped; other settings, other name

# %% The verdict, with its three questions and the next command
analysis = probe.analyze(run)
print(analysis.verdict)

# %% One rollout: of all that are rewarded, the one that pushes hardest towards the hack
paid = [sample for sample in run.samples if sample.arm == "vanilla" and sample.advantage > 0]
top = max(paid, key=lambda sample: sample.cos_S_contrib or 0.0)
group = next(group for group in pools[top.src_pool].steps if group[0].step == top.src_step)
rollout = next(rollout for rollout in group if rollout.sample_id == top.src_sample)
print(f"{top.src_pool}, {top.problem_id}: cos {top.cos_S_contrib:+.2f}, reward {top.reward}, hacked {top.hacked}")
print(rollout.messages[-1]["content"], rollout.completion, sep="\n\n")
