"""gradient-probe in six cells, on what comes with the package; any editor that knows `# %%` runs them one by one.

About a minute on a CPU, without the network. Everything is written below ./out.
"""

# %% Rollouts: two policies answer the same problems, and one of them hacks
from pathlib import Path

import probe
from extraction.directions import sign_accuracy
from extraction.library import DirectionLibrary, attach_basis
from extraction.words import ExtractionSettings
from probe.analysis.analyze import analyze
from probe.analysis.text_report import format_verdict
from probe.runs.replay import replay
from probe.settings.presets import configure
from replay_pools.policy.load import load_policy
from replay_pools.pool import open_pool, resolve_pool

OUT = Path("out")
pools = {name: open_pool(resolve_pool(name, OUT)) for name in ("teacher", "base")}  # or pools of your own, in OUT/pools
for name, pool in pools.items():
    rollouts = [rollout for group in pool.steps for rollout in group]
    hacks = sum(rollout.hacked for rollout in rollouts)
    print(f"{name}: {len(rollouts)} rollouts of {len(pool.steps)} problems, {hacks} of them hack")

# %% v_hack: where pairs of a hack and a clean answer say that the hack points in gradient space
policy = load_policy("organism")  # or a directory, or a hub id
coordinates = attach_basis(policy, "svd", cache_dir=OUT / "cache")
library = DirectionLibrary(policy, coordinates, ExtractionSettings(pairs="builtin", k=4), cache_dir=OUT / "cache")
held_out = sign_accuracy(library.pair_gradients, library.v_hack)
print(f"v_hack has the right sign on {held_out['accuracy']:.0%} of {held_out['num_pairs']} pairs that it has not seen")

# %% Replay: the rollouts go through the training step; no weights move
options = {
    "source.replay_dirs": list(pools),
    "intervention.arms": ["vanilla", "projected"],
    "intervention.extraction.k": 4,
    "steps": 20,
}
directory = OUT / "runs" / "quickstart"  # run again, this cell goes on where it stopped; other settings, other name
replay(configure("replay", options=options), directory, out_dir=OUT, say=print)

# %% The verdict, with its three questions
run = probe.load(directory)
analysis = analyze(run)
print(format_verdict(analysis))

# %% One rollout: of all that are rewarded, the one that pushes hardest towards the hack
paid = [sample for sample in run.samples if sample.arm == "vanilla" and sample.advantage > 0]
top = max(paid, key=lambda sample: sample.cos_S_contrib or 0.0)
group = next(group for group in pools[top.src_pool].steps if group[0].step == top.src_step)
rollout = next(rollout for rollout in group if rollout.sample_id == top.src_sample)
print(f"{top.src_pool}, {top.problem_id}: cos {top.cos_S_contrib:+.2f}, reward {top.reward}, hacked {top.hacked}")
print(rollout.messages[-1]["content"], rollout.completion, sep="\n\n")

# %% What to do next: a command of the shell
print(analysis.verdict.next.text, analysis.verdict.next.command, sep="\n")
