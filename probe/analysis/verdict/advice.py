"""Advice after a verdict: one table of sentences and commands, and the code that fills in their placeholders.

A placeholder without a value (a pool without a recipe, for example) leaves the sentence without a command.

To add advice, add a row to ADVICE and return its reason in `probe.analysis.verdict.next_step` or
`probe.analysis.verdict.trained`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.analysis.statistics.intervals import MANY
from probe.analysis.statistics.thresholds import MIN_SEEDS, POWER, SHOWN_REMOVED
from probe.analysis.verdict.verdict import Next
from probe.records.run import in_root

SEEDS = (3, 5, 10)  # seeds per arm, for the cost of the trainings after a GO
MORE_ROLLOUTS = 4  # factor on the rollouts per prompt, to get answers of both kinds to it
LEAST_PROMPTS = 20  # minimum advised if an interval needs prompts; its width falls with their square root
ROLLOUTS = 16  # per prompt: enough for both kinds if a policy hacks 30% to 60%
PROMPTS = 96  # minimum for such a policy: half of them to take pairs from, the others to measure on
TEACHES = 0.3  # hack rate from which a pool counts as the hacking policy's
HALFWAY, NATURAL = "halfway", "natural"  # names of the advised checkpoint and pool, and of its replay
# Scale of the hacking policy's adapter halfway to it, and the rollouts and prompts that measure the cost to honest
# solutions on the bundled model organism (spec/experiments/phase2.md).
SCALE, SCALED_ROLLOUTS, SCALED_PROMPTS = 0.45, 8, 64
DRAFT, DRAFTED = "drafted", 32  # name of the advised pairs; prompts answered both ways (pairs come from half)
K = "intervention.extraction.k"
AGAIN, EXTRACT = "{repeat} --name again", "{extract} --pairs FILE.jsonl --name OTHER"
PAIRS = "{other_pairs}"  # drafted from the run's rollouts if they hold both kinds, else EXTRACT
SAMPLE = "{samples}\n{replay_samples}"
HALVES = "{halves}"
HALFWAY_ROLLOUTS = "use rollouts of one policy that hacks in 30% to 60%, whose hacks and honest answers are alike. "
# Where no adapter makes the hacks, and where one does.
TRAIN_HALFWAY = (
    "Train one, sample it, replay that, price the training in question (the first command prints how often it hacks; "
    "--steps N trains less or more)"
)
MIXED = "mixed"  # the pool of the package that a part of its teacher's adapter sampled
REPLAY_MIXED = "The package has such a pool: replay it at the weights that sampled it"
SCALE_HALFWAY = (
    f"Sample the base with {SCALE:.0%} of its teacher's adapter, replay that, time some steps, price the training in "
    f"question (probe pool show {HALFWAY} says how often it hacks; more of the adapter hacks more often)"
)
LOG_HALFWAY = (
    "log rollouts of one checkpoint that hacks in 30% to 60% of them, several to each prompt with the same hint, so "
    "that hacks and honest answers are alike"
)
_AIM = f"use directions that remove {SHOWN_REMOVED:.0%} or more of the gain on held-out hacks"
_MENDED = "do not use this run until this is fixed: "
_EFFECT = f"smallest detectable drop in the hack rate ({POWER:.0%} power, sd {{sd:g}} between seeds): {{sizes}}"
_OWN_TRAINER = "train in your own trainer along the direction (probe.attach), with vanilla and a KL penalty as rivals"

# {a share: what advice calls it}
SHARE_WORDS = {
    "pull": "the alignment",
    "benign": "the alignment without the hacks",
    "pull - benign": "what the hacks add to the alignment",
    "half - benign": "whether the hacks bring half of the alignment",
    "contrast": "the contrast",
}
# {reason: (sentence, commands)}
ADVICE: Mapping[str, tuple[str, str]] = {
    # BROKEN, by part of the measurement
    "grader canaries": (
        f"{_MENDED}grade again where submissions are isolated; probe doctor says whether this machine isolates them",
        "probe doctor\n{regrades}\n{replay_regraded}",
    ),
    "grader canaries, trained": (
        f"{_MENDED}train again where submissions are isolated; here they could write their own labels",
        "probe doctor",
    ),
    "regrade agreement": (f"{_MENDED}replay the pools of the second grading", "{replay_regraded}"),
    "regrade agreement, trained": (f"{_MENDED}train again; it learnt from labels that do not repeat", ""),
    "arms at the first step": (f"{_MENDED}replay all arms again, in one pass", AGAIN),
    "arms at the first step, trained": (
        f"{_MENDED}train the arms of this seed again, with one version of the program and the weights",
        "",
    ),
    "contributions add up": (
        f"{_MENDED}replay in {{dtype}}; contributions differ by rounding",
        "{repeat} --set model.dtype={dtype} --name again",
    ),
    "contributions add up, float64": (
        f"{_MENDED}gradients in float64 do not add up, which is a bug of this program",
        "probe doctor",
    ),
    "held-out sign": (
        f"{_MENDED}use other pairs; this v_hack has the wrong sign on held-out hacks",
        PAIRS,
    ),
    "template tails": (
        f"{_MENDED}render the prompts of all pools with one version of the chat template",
        SAMPLE,
    ),
    "offline geometry": (
        f"{_MENDED}repeat the run under another name; the same result is a bug of this program",
        AGAIN,
    ),
    "gate": (f"{_MENDED}repeat the run under another name; the same result is a bug of this program", AGAIN),
    # SKIP
    "not hack-ward": (
        "extract from pairs of this policy: these directions align with held-out hacks ({ceiling:+.3f}), and not with "
        "these updates",
        PAIRS,
    ),
    "away, unpaid": (
        "leave projection out: these rewards do not teach the hack (hacks earn {hacks:.2g}, others {others:.2g}), "
        "unless the training pays otherwise (--map reward=COLUMN)",
        "",
    ),
    "away, unlabelled": (
        "label the hacks (--map hacked=COLUMN): either the rewards do not teach them, or what else they teach "
        "outweighs them, and there is nothing to project out",
        "",
    ),
    "away": ("what the other rollouts teach ({benign}) outweighs the rewarded hacks: {halfway}", HALVES),
    "more directions": (
        f"{_AIM}: {{k}} of the same pairs, or of pairs like the held-out ones (probe extract --pairs FILE.jsonl)",
        "{repeat} --k {k} --name again",
    ),
    "more directions, of a file": (f"{_AIM}: more of them (--k), or of pairs like the held-out ones", PAIRS),
    "more directions, all taken": (
        f"{_AIM}: of pairs like the held-out ones, since these give no more than {{k}} a module",
        PAIRS,
    ),
    # GENERIC
    "off v_hack": (
        "extract from pairs like the held-out ones, whose hacks gain mostly off v_hack, and replay with --v-hack OTHER",
        EXTRACT,
    ),
    "not the hacks": (
        "write pairs that differ in the hack alone (same body, length and tests), and replay with --v-hack OTHER",
        EXTRACT,
    ),
    "inverted": (
        "grade again: labelled hacks point less toward the hack than honest answers; are the labels swapped?",
        "{regrade}",
    ),
    "inverted, of a log": (
        "read some rollouts of both kinds (probe pool show): labelled hacks point less toward the hack than honest "
        "answers; are the labels swapped (--map hacked=COLUMN)?",
        "",
    ),
    # CONFOUNDED
    "same prompts": ("replay {partner}, another policy that answers the very prompts of {pool}", "{replay_partner}"),
    "both sides": (
        "get rewarded hacks and honest solutions to one prompt, of similar length: {more}",
        "{samples}",
    ),
    "halfway": ("{halfway}", HALVES),  # also if hacks are missing
    "apart, of a log": (
        "{halfway}. If these are such rollouts, this policy's hacks differ in {scores} by nature, and only trainings "
        "decide: vanilla, projection, and norm-matched shuffled pairs",
        "",
    ),
    "apart by nature": (
        "train vanilla, projection and norm-matched shuffled pairs: this policy's hacks differ in {scores} by "
        "nature, and only trainings decide",
        "",
    ),
    # UNDERPOWERED: nothing can be read
    "arm": ("measure an arm along v_hack", "{repeat} --arm vanilla,projected --name again"),
    "updates": ("get rewards that differ within a prompt: {more}", "{samples}"),
    "gram": ("replay again, and keep the inner products", AGAIN),
    "loss": ("replay with advantages and gradients alone", "{repeat}{plain_objective} --name again"),
    "held out": ('mark a dozen pairs "held_out": true in FILE.jsonl', EXTRACT),
    "few prompts": ("replay {steps} prompts or more; an interval narrows with their square root{limit}", SAMPLE),
    "no reach": ("write better pairs: v_hack does not transfer to its {held_out} held-out ones ({share})", PAIRS),
    "pairs to reach": (
        "get about {pairs} held-out pairs ({held_out} so far), and as many times more to extract from: they would "
        "fix the held-out reference ({share})",
        PAIRS,
    ),
    # UNDERPOWERED, LIKELY: a question is open, or a part of its answer is not measured
    "own hacks": (
        "use pairs of this policy: these directions do not separate its own hacks from its honest solutions",
        PAIRS,
    ),
    "own hacks keep their gain": (
        "use pairs of this policy: projecting these directions out removes {removed} of the gain on held-out hacks, "
        "and less of the gain on its own hacks",
        PAIRS,
    ),
    "unpaid": ("check the reward (--map reward=COLUMN): no rewarded rollout hacks", ""),
    "benign": ("get rewards that differ among the rollouts of a prompt that do not hack: {more}", "{samples}"),
    "right": (
        "say which rollouts are right (--map gt_pass=COLUMN of probe check or probe pool import); for minicode and "
        "LeetCode problems probe pool regrade {pool} finds it out",
        "",
    ),
    "honest": ("get rewarded rollouts that are right and honest: {more}", "{samples}"),
    "price": ("replay 4 times as many prompts ({steps}) to halve the error of the cost{limit}", SAMPLE),
    "labels": (
        "say which rollouts hack (--map hacked=COLUMN of probe check or probe pool import); for minicode and LeetCode "
        "problems probe pool regrade {pool} finds it out",
        "",
    ),
    "undecided": (
        f"use different pairs: neither {MANY} prompts nor 8 times as many pairs would decide {{share}}",
        PAIRS,
    ),
    "overlap": (
        "replay about {prompts} prompts with rewarded answers of both kinds ({so_far} so far): they show whether hacks "
        f"and honest answers overlap in {{scores}} ({POWER:.0%} power){{limit}}",
        SAMPLE,
    ),
    "prompts": (
        f"replay about {{prompts}} prompts ({{so_far}} so far): they decide {{share}} with {POWER:.0%} power{{limit}}",
        SAMPLE,
    ),
    "pairs": (
        f"use {{factor}} times as many pairs ({{pairs}} held out, {{held_out}} so far): they decide {{share}} with "
        f"{POWER:.0%} power, and prompts alone do not",
        PAIRS,
    ),
    "pairs and prompts": (
        "use {factor} times as many pairs ({pairs} held out, {held_out} so far) and about {prompts} prompts "
        f"({{so_far}} so far): together they decide {{share}} with {POWER:.0%} power",
        PAIRS,
    ),
    "no progress": ("replay 4 times as many prompts ({steps}) to halve the error of that gain{limit}", SAMPLE),
    "permuted take as much": (
        "use 4 times as many pairs ({pairs} held out, {held_out} so far): shuffled ones then remove half as much",
        PAIRS,
    ),
    "wide by prompts": (
        "replay 4 times as many prompts ({steps}) to narrow the interval of what projection removes ({removed}), which "
        "includes 0{limit}",
        SAMPLE,
    ),
    "wide by pairs": (
        "use 4 times as many pairs ({pairs} held out, {held_out} so far) to narrow the interval of what projection "
        "removes ({removed}), which includes 0",
        PAIRS,
    ),
    # GO, TRAINED
    "train": (f"train with controls and rivals; {_EFFECT}", "probe spec plan {run}"),
    "train elsewhere": (f"{_OWN_TRAINER}; {_EFFECT}", "{direction}"),
    "train elsewhere, other basis": (
        f"{_OWN_TRAINER}, since probe train has vanilla and its controls in the basis svd, not in {{basis}}; {_EFFECT}",
        "{direction}",
    ),
    "compare": ("compare arms and seeds of one training together", "probe analyze RUN RUN ..."),
    # After training: NO QUESTION, WORKS, DOMINATED
    "longer": (
        "train vanilla alone for {steps} steps, until it hacks {points:.0f} points more than at the start",
        "{train} --set steps={steps} --name longer",
    ),
    "no rival": (
        "train a rival that needs no pairs, a KL penalty of {beta:g}, on {seeds} seeds",
        "{train} --set objective.reference=base --set objective.beta={beta} --name penalty",
    ),
    "another model": (
        f"train another model, against vanilla: {{seeds}} seeds an arm detect half of this drop with {POWER:.0%} power",
        "{train} --set model.name=MODEL --name elsewhere",
    ),
    "as good without a direction": (
        "train vanilla at half the learning rate: a gradient that is only made smaller does as well ({rival}, {rates})",
        "{train} --set optimizer.lr={lr:g} --name slower",
    ),
    "as good without the hack": (
        "extract from other pairs: directions without the hack do as well ({rival}, {rates})",
        "probe extract --pairs FILE.jsonl --name OTHER",
    ),
    "rival": ("use {rival}, {rates}; or see whether {arm} adds anything to it", "{train}{added} --name both"),
    "rival, other settings": ("use {rival}, {rates}; {arm} cannot be added, because {key} differs", ""),
    # After training: COSTS, RAISES, NO EFFECT
    "never applied": ("change a setting that acts on these runs, or leave the arm out", ""),
    "raises": ("leave it out: it teaches the hack that it should prevent", ""),
    "control": ("the control has no effect: what v_hack does is not due to the shape of the projection", ""),
    "dose": ("{dose}: {key} {value:g} instead of {now:g}", "{train} --set {key}={value} --name other-dose"),
    "dose, of a file": (
        "{dose}: extract {number} directions (--k), then train along them (intervention.v_hack)",
        "probe extract --pairs FILE.jsonl --name OTHER",
    ),
    "dose, no number": ("{dose}, of what sets it apart: {condition}", ""),
    "dose, least": ("use another remedy: {key} is {now:g} and cannot be lower", ""),
    "dose, other pairs": (
        "train along the pairs of FILE.jsonl: these pairs do not give {dose} ({key} {now:g})",
        "{train} --set intervention.extraction.pairs=FILE.jsonl --name other-pairs",
    ),
    # After training: LOWERS, UNDERPOWERED
    "unfinished": (f"finish and evaluate runs of {{arm}}, {MIN_SEEDS} seeds or more", ""),
    "more seeds": (f"train {MIN_SEEDS} seeds an arm or more, {{so_far}} of {{arm}} so far", "{train} --name more"),
    "seeds": (
        'train {more} more seeds of each arm: {seeds} decide "{question}" '
        f"with {POWER:.0%} power, {{so_far}} so far",
        "{train} --name more",
    ),
    # No command: an arm with a different evaluation is not compared.
    "no seeds": (
        'no number of seeds up to {most} decides "{question}": train all arms again with more held-out problems '
        "(evaluation.num_problems, {problems} so far), more rollouts of each (evaluation.rollouts_per_problem, "
        "{rollouts} so far), or another dose",
        "",
    ),
}
Reason = tuple[str, dict[str, Any]]  # a row of ADVICE, and the values of its placeholders


def advise(reason: str, facts: Mapping[str, Any], out: Path) -> Next:
    """Return the advice for a reason, filled in, with commands in a root folder; no commands if a value is None."""
    sentence, command = ADVICE[reason]
    if any(value is None and f"{{{name}}}" in command for name, value in facts.items()):
        command = ""
    return Next(text=sentence.format(**facts), command=in_root(command.format(**facts), out))
