"""Steps that decide an open answer on a replay, or follow from its verdict: a sentence, and at most one command.

`probe.analysis.verdict.decision` chooses the step. A command is one line; what takes several commands is a section of
the manual (`probe docs NAME`). To add advice, write a function that returns its `Next`.
"""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from extraction.settings import Basis
from probe.analysis.cosines import mean_or_none
from probe.analysis.estimate import Estimate
from probe.analysis.pull import TOO_FEW_PROMPTS, pairs_to_reach, prompts_needed
from probe.analysis.statistics.intervals import MAX_PROMPTS
from probe.analysis.statistics.significance import mde
from probe.analysis.statistics.thresholds import POWER, SD, SHOWN_REMOVED
from probe.analysis.verdict.pools import as_sampled, environment_of
from probe.analysis.verdict.verdict import Next
from probe.records.run import CONFIG_FILE, Run
from probe.settings.presets import configure, setting_text
from probe.settings.words import HIGHER
from replay_pools.base.tables import flat

if TYPE_CHECKING:
    from probe.analysis.analyze import Analysis

K, PAIRS = "intervention.extraction.k", "intervention.extraction.pairs"
SEEDS = (3, 5, 10)  # seeds per arm, for the cost of the trainings after a GO
MORE = 4  # factor on rollouts, prompts or pairs that halves an error, or gives answers of both kinds to a prompt
LEAST_PROMPTS = 20  # minimum advised if an interval needs prompts; its width falls with their square root
FEWEST_TO_PLAN = 8  # prompts: the spread of fewer says little about how many decide
LEAST_MIXED = 0.3  # of hacks, and of other rollouts, in a pool of a policy that does both
ROLLOUTS = 16  # per prompt: enough for both kinds if a policy hacks 30% to 60%
DOZEN = 12  # held-out pairs, when too few are marked
MIXED = "mixed"  # the bundled pool of a policy that hacks and solves
BOTH_KINDS = "rewarded hacks and honest solutions to one prompt, of similar length"
SHARE_WORDS = {  # {a share: how advice calls it}
    "pull": "the alignment",
    "benign": "the alignment without the hacks",
    "pull - benign": "what the hacks add to the alignment",
    "half - benign": "whether the hacks bring half of the alignment",
    "contrast": "the contrast",
}


def repeat(run: Run, as_name: str = "again", /, **changes: Any) -> str:
    """Return the command that repeats a run under another name; `changes` are settings by their dotted keys."""
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={setting_text(value)}")]
    return shlex.join(
        ["probe", run.settings.verb, "--config", str(run.path / CONFIG_FILE), *settings, "--name", as_name]
    )


def direction(run: Run, basis: Basis) -> str:
    """Return the command that creates a run's direction as a file by extraction, or shows the file given to the run."""
    v_hack, model = run.settings.intervention.v_hack, run.config.get("model")
    if v_hack is not None:
        return shlex.join(["probe", "show", v_hack])
    words = ["probe", "extract", "--config", str(run.path / CONFIG_FILE)]
    # A replay defaults to the model named by its pools, an extraction to the bundled model organism.
    if run.settings.model.name is None and model not in (None, "organism"):
        words += ["--model", model]
    words += [] if basis == "svd" else ["--basis", basis]
    return shlex.join([*words, "--name", run.path.resolve().name])


def other_pairs(analysis: "Analysis", why: str) -> Next:
    """Advise other pairs."""
    return Next(text=f"use other pairs (probe docs directions): {why}", command=_with_pairs(analysis))


def more_pairs(analysis: "Analysis", what: str, held_out: int, pairs: int | None = None) -> Next:
    """Advise `pairs` held-out pairs (default: MORE times `held_out`), and as large a factor on the extraction pairs."""
    pairs = MORE * held_out if pairs is None else pairs
    extract = f" and {pairs / held_out:.2g} times as many pairs to extract from" if held_out > 1 else ""
    text = f"use about {pairs} held-out pairs ({held_out} so far){extract}{what}"
    return Next(text=text, command=_with_pairs(analysis))


def _with_pairs(analysis: "Analysis") -> str:
    """Return the command that repeats a replay along the pairs of a file."""
    from_file = analysis.records.settings.intervention.v_hack is not None
    changes = {PAIRS: "FILE.jsonl"} | ({"intervention.v_hack": None} if from_file else {})
    return repeat(analysis.records, "other-pairs", **changes)


def _on_pools(run: Run, names: Sequence[str], name: str = "again", **changes: Any) -> str:
    """Return the command that replays all groups of other pools with the run's settings."""
    steps = {} if run.settings.steps is None else {"steps": None}
    return repeat(run, name, **{**changes, "source.replay_dirs": [*names], **steps})


def on_mixed(run: Run) -> str:
    """Return the command that replays the bundled pool of a policy that does both, at the weights that sampled it."""
    return _on_pools(run, [MIXED], MIXED, **{"source.match": "problem", **as_sampled(MIXED)})


def broken(part: str, analysis: "Analysis") -> Next:
    """Advise what mends a part of the measurement."""
    run, again = analysis.records, "train again" if analysis.trains else "repeat the run"
    if part == "held-out sign":
        return other_pairs(analysis, "this v_hack has the wrong sign on held-out hacks")
    regrades = [pool.reference if pool.regrade is None else pool.regrade.name for pool in analysis.pools]
    remedies = {  # {part: what mends it, its command}
        "grader canaries": (f"grade where submissions are isolated (probe docs grader), then {again}", "probe doctor"),
        "regrade agreement": (
            f"{again} on the labels of the second grading",
            "" if analysis.trains else _on_pools(run, regrades),
        ),
        "template tails": ("render the prompts of all pools with one chat template (probe docs pools)", ""),
    }
    if dtype := HIGHER.get(run.settings.model.dtype):
        why = f"replay in {dtype}; contributions differ by rounding"
        remedies["contributions add up"] = why, repeat(run, **{"model.dtype": dtype})
    bug = f"{again} under another name; the same result is a bug of this program", repeat(run)
    text, command = remedies.get(part, bug)
    return Next(text=f"do not use this run until this is fixed: {text}", command=command)


def not_toward(share: Estimate, analysis: "Analysis") -> Next:
    """Advise other pairs for an update that does not point toward the hack; check what it is paid if it points away."""
    if share.high >= 0:
        ceiling = f"these directions align with held-out hacks ({share.parts['ceiling']:+.3f})"
        return other_pairs(analysis, f"{ceiling}, and not with these updates")
    if analysis.unlabelled:
        return more_labels()
    sides = ([one for one in analysis.sure if bool(one.hacked) == hacked] for hacked in (True, False))
    (paid, hacks), (others_paid, others) = (
        [mean_or_none([getattr(one, name) for one in side]) or 0.0 for name in ("advantage", "reward")]
        for side in sides
    )
    if paid <= others_paid:
        return unpaid(f"hacks earn {hacks:.2g}, others {others:.2g}; if it is right, leave projection out")
    benign = analysis.get("shares", "benign")
    what = f"what the other rollouts teach (alignment {benign} without the hacks)"
    return mixed_pool(analysis, f"{what} outweighs the rewarded hacks: ")


def unpaid(why: str) -> Next:
    """Advise to check the reward."""
    return Next(text=f"check the reward (--map reward=COLUMN): {why}")


def generic(analysis: "Analysis") -> Next:
    """Advise pairs that differ in the hack alone, or to check the labels."""
    contrast, pools = analysis.get("shares", "contrast"), analysis.pools
    if contrast.high < 0 and not any(pool.said("regraded_from") for pool in pools):
        return Next(
            text="read some rollouts of both kinds (probe pool show): labelled hacks point less toward the hack than "
            "honest answers; are the labels swapped (--map hacked=COLUMN, probe pool regrade)?"
        )
    return other_pairs(
        analysis, "write pairs like the held-out ones that differ in the hack alone (same body, length and tests)"
    )


def mixed_pool(analysis: "Analysis", why: str = "") -> Next:
    """Advise a policy that hacks in about half of its rollouts; the package has one of its own organism."""
    where, command, policies = " (probe docs pools)", "", {pool.policy for pool in analysis.pools}
    if policies and policies <= {("organism", None), ("organism", "teacher")}:
        where = ". The package has such a pool: replay it where it was sampled"
        command = on_mixed(analysis.records)
    kinds = "several to each prompt with the same hint, so that hacks and honest answers are alike"
    return Next(text=f"{why}use rollouts of one policy that hacks in 30% to 60%, {kinds}{where}", command=command)


def more_directions(analysis: "Analysis") -> Next:
    """Double the directions from the same pairs; advise other pairs if these give no more, or came with them."""
    intervention = analysis.records.settings.intervention
    now, aim = intervention.extraction.k, f"{SHOWN_REMOVED:.0%} or more of the gain on held-out hacks"
    k = 2 * now if analysis.reproduced is None else min(2 * now, analysis.reproduced.pairs.most_directions)
    if k <= now or intervention.v_hack is not None:
        return other_pairs(analysis, f"to remove {aim}, take pairs like the held-out ones")
    text = f"project out {aim}: {k} of the same pairs, or of pairs like the held-out ones"
    return Next(text=text, command=repeat(analysis.records, **{K: k}))


def confounded(scores: str, analysis: "Analysis") -> Next:
    """Advise more rollouts per prompt, a policy that does both, or a training if this policy already does."""
    pools, sure = analysis.pools, analysis.sure
    if not scores and _group(analysis) < ROLLOUTS:
        return more_rollouts(BOTH_KINDS, analysis)
    adapter = analysis.records.settings.model.adapter
    is_own = adapter is not None and {pool.policy[1] for pool in pools} == {adapter}
    hack_rate = sum(bool(sample.hacked) for sample in sure) / max(len(sure), 1)
    if is_own or (len(pools) == 1 and LEAST_MIXED <= hack_rate <= 1 - LEAST_MIXED):
        return Next(
            text="train vanilla, projection and norm-matched shuffled pairs: this policy's hacks differ in "
            f"{scores or 'their rewards'} by nature, and only trainings decide"
        )
    return mixed_pool(analysis)


def overlap_unclear(unclear: Sequence[Estimate], scores: str, analysis: "Analysis") -> Next:
    """Advise prompts that would settle the overlap, or rollouts that overlap if no number of prompts would."""
    needed_prompts, so_far = [one.parts["prompts_needed"] for one in unclear], unclear[0].n
    if None in needed_prompts:  # groups of two, or a ratio at the bound
        return more_rollouts(BOTH_KINDS, analysis) if _group(analysis) < ROLLOUTS else mixed_pool(analysis)
    what = f" with rewarded answers of both kinds: they show whether hacks and honest answers overlap in {scores}"
    # Only some prompts have rewarded answers of both kinds.
    return more_prompts(analysis, f"{what} ({POWER:.0%} power)", max(*needed_prompts, so_far + 1), so_far)


def more_labels(labels: str = "hack", column: str = "hacked") -> Next:
    """Advise labels."""
    how = f"--map {column}=COLUMN of probe check or probe pool import"
    known = "for minicode and LeetCode problems probe pool regrade finds it out"
    return Next(text=f"say which rollouts {labels} ({how}); {known}")


def plain_loss(run: Run) -> Next:
    """Advise the default objective, whose cosines the inner products reproduce."""
    usual, here = flat(asdict(configure("replay").objective)), flat(asdict(run.settings.objective))
    changes = {f"objective.{key}": usual[key] for key, value in here.items() if value != usual[key]}
    text = "replay with advantages and gradients alone, and keep the inner products"
    return Next(text=text, command=repeat(run, **changes))


def undecided(share: Estimate, analysis: "Analysis") -> Next:
    """Advise prompts if they would decide a share, or pairs: for its error, or for a held-out reference above 0.

    A number of prompts is scaled up, since only some have what the share needs: both labels, or rewards that differ.
    """
    named, held_out = SHARE_WORDS[share.name], share.parts["num_held_out"]
    if share.why == TOO_FEW_PROMPTS:
        return more_prompts(analysis, ": an interval narrows with their square root", LEAST_PROMPTS, share.n)
    if share.value is None:
        if (pairs := pairs_to_reach(share)) is None:
            return other_pairs(analysis, f"v_hack does not transfer to its {held_out} held-out ones ({named})")
        return more_pairs(analysis, f": they fix the held-out reference ({named})", held_out, pairs)
    if (prompts := prompts_needed(share)) is not None:
        return more_prompts(analysis, f": they decide {named} with {POWER:.0%} power", prompts, share.n)
    if share.n < FEWEST_TO_PLAN:
        return more_prompts(analysis, ": so few cannot say what would decide", LEAST_PROMPTS, share.n)
    why = f"most of the error of {named} comes from the pairs, and so many halve it"
    return more_pairs(analysis, f": {why}; not even {MAX_PROMPTS} prompts would decide", held_out)


def train(analysis: "Analysis") -> Next:
    """Advise a training with controls, by this program or along the direction in another trainer."""
    run, why = analysis.records, ""
    sizes = ", ".join(f"{seeds} seeds {mde(SD, seeds):.2f}" for seeds in SEEDS)
    effect = f"smallest detectable drop in the hack rate ({POWER:.0%} power, sd {SD:g} between seeds): {sizes}"
    if analysis.basis != "svd":
        why = f", since probe train has vanilla and its controls in the basis svd, not in {analysis.basis}"
    if why or (analysis.pools and not any(environment_of(pool.said("plan") or {}) for pool in analysis.pools)):
        text = "train in your own trainer along the direction (probe docs trainers), with vanilla and a KL penalty as"
        return Next(text=f"{text} rivals{why}; {effect}", command=direction(run, analysis.basis))
    name = run.path.name if run.path.resolve().parent.name == "runs" else str(run.path)
    return Next(text=f"train with controls and rivals; {effect}", command=f"probe spec plan {shlex.quote(name)}")


def _group(analysis: "Analysis") -> int:
    return max(Counter(sample.step for sample in analysis.samples).values(), default=0)


def more_rollouts(what: str, analysis: "Analysis") -> Next:
    """Advise more rollouts of every prompt."""
    group = _group(analysis)
    return Next(text=f"get {what}: {MORE * group} rollouts of every prompt, {group} so far")


def more_prompts(analysis: "Analysis", what: str, prompts: int | None = None, so_far: int | None = None) -> Next:
    """Advise prompts: those that the pools hold and this replay left out, else new ones.

    Args:
        analysis: the analysis.
        what: what they decide.
        prompts: their advised number; default: MORE times all.
        so_far: number of prompts that count; default: all.
    """
    all_prompts, command = len({step.problem_id for step in analysis.steps}), ""
    prompts, so_far = prompts or MORE * all_prompts, all_prompts if so_far is None else so_far
    steps = min(math.ceil(prompts * all_prompts / max(so_far, 1)), MAX_PROMPTS)
    in_pools = min((pool.said("counts.steps") or 0 for pool in analysis.pools), default=0)
    if analysis.records.settings.steps is not None and in_pools > analysis.size["num_steps"]:
        limit = f"this replay took {analysis.size['num_steps']} groups, and the pools hold more"
        command = repeat(analysis.records, steps=None)
    else:
        limit = f"sample or log {steps} groups of different prompts (probe docs pools)"
    text = f"replay about {prompts} prompts ({so_far} so far){what}; {limit}"
    return Next(text=text, command=command)
