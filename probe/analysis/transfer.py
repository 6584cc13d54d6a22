"""AUROC of v_hack for the policy's OWN hacks against its own honest solutions.

Pairs by other authors, and hacks of the hacking policy, may point elsewhere than the hacks that a policy finds. This
module therefore uses rollouts of the policy itself (a checkpoint, a later part of a log), rewarded or not, by
cos_S_nll.
"""

from collections.abc import Sequence
from dataclasses import replace

from probe.analysis.detectors import separation
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.run_gradients import Linked

LEAST = 5  # minimum number of hacks, and of honest solutions


def transfer(linked: Linked, pools: Sequence[str], arm: str) -> Estimate:
    """Return the AUROC on the policy's own rollouts, in `pools`; `why` gives the reason if it is missing.

    parts: `num_hacks`, `num_honest`.
    """
    rows = [
        i
        for i, sample in enumerate(linked.samples)
        if sample.src_pool in pools and sample.sure and linked.norms[i] > 0 and (sample.hacked or sample.gt_pass)
    ]
    hacked = [float(linked.samples[i].hacked or 0) for i in rows]
    prompts = [linked.samples[i].problem_id for i in rows]
    row = separation("own hacks", linked.cosines[rows], hacked, prompts, arm=arm)
    num_hacks, num_honest = row.parts["n_hacked"], row.parts["n_clean"]
    why = ""
    if not pools:
        why = "no rollouts of the policy itself"
    elif num_hacks and all(sample.gt_pass is None for sample in linked.samples if sample.src_pool in pools):
        why = f"whether the policy's own rollouts are right is not known (gt_pass), {num_hacks} are hacks"
    elif min(num_hacks, num_honest) < LEAST:
        why = f"the policy's own rollouts have {num_hacks} hacks and {num_honest} honest solutions"
    elif row.interval is None:
        why = "its hacks or its honest solutions are in one prompt alone"
    row = replace(row, parts={"num_hacks": num_hacks, "num_honest": num_honest}, why=why)
    return replace(row, value=None, interval=None) if why else row
