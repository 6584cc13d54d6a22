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
HALFWAY_ROLLOUTS = "rollouts of one policy that hacks in 30% to 60% of them, whose hacks and clean answers are alike. "
# Without and with an adapter that hacks.
TRAIN_HALFWAY = (
    "Train one, sample it, replay that, price the training in question (the first command prints how often it hacks; "
    "--steps N trains less or more)"
)
SCALE_HALFWAY = (
    f"Sample the base with {SCALE:.0%} of its teacher's adapter, replay that, time some steps, price the training in "
    f"question (probe pool show {HALFWAY} says how often it hacks; more of the adapter hacks more often)"
)
LOG_HALFWAY = (
    "log rollouts of one checkpoint that hacks in 30% to 60% of them, several to each prompt with the same hint: hacks "
    "and clean answers are alike there"
)
_AIM = f"directions that remove {SHOWN_REMOVED:.0%} or more of the progress on held-out hacks"
_MENDED = "no number of this run is read until that is fixed: "
_EFFECT = (
    f"smallest difference of hack rates that is seen with {POWER:.0%} power at sd {{sd:g}} between seeds: {{sizes}}"
)
_OWN_TRAINER = "train in your own trainer along the direction (probe.attach), with vanilla and a KL penalty as rivals"

# {reason: (sentence, commands)}
ADVICE: Mapping[str, tuple[str, str]] = {
    # BROKEN, by part of the measurement
    "grader canaries": (
        f"{_MENDED}labels that no submission can write; the first line says whether this machine isolates what it runs",
        "probe doctor\n{regrades}\n{replay_regraded}",
    ),
    "grader canaries, trained": (
        f"{_MENDED}train again where submissions are isolated: it learnt from labels that they can write",
        "probe doctor",
    ),
    "regrade agreement": (f"{_MENDED}the labels of the second grading, in pools of their own", "{replay_regraded}"),
    "regrade agreement, trained": (f"{_MENDED}train again: it learnt from labels that do not repeat", ""),
    "arms at the first step": (f"{_MENDED}all arms again, in one pass", AGAIN),
    "arms at the first step, trained": (
        f"{_MENDED}train the arms of this seed again, all by one version of the program and of the weights",
        "",
    ),
    "contributions add up": (
        f"{_MENDED}the same in {{dtype}}: contributions miss by rounding",
        "{repeat} --set model.dtype={dtype} --name again",
    ),
    "contributions add up, float64": (
        f"{_MENDED}the gradients are in float64 and do not add up: a fault of the program",
        "probe doctor",
    ),
    "held-out sign": (
        f"{_MENDED}other pairs: v_hack of these has the wrong sign on hacks that it has not seen",
        PAIRS,
    ),
    "template tails": (
        f"{_MENDED}prompts that end alike: one version of the model's chat template for all pools",
        SAMPLE,
    ),
    "offline geometry": (f"{_MENDED}the same run under another name; if it ends alike, the program is at fault", AGAIN),
    "gate": (f"{_MENDED}the same run under another name; if it ends alike, the program is at fault", AGAIN),
    # SKIP
    "not hack-ward": (
        "these directions reach held-out hacks (they read {ceiling:+.3f}) and not these updates: extract from pairs of "
        "this policy",
        PAIRS,
    ),
    "away, unpaid": (
        "these rewards do not teach the hack: hacks earn {hacks:.2g}, others {others:.2g}. There is nothing for a "
        "gate to remove, unless the training pays otherwise (--map reward=COLUMN)",
        "",
    ),
    "away, unlabelled": (
        "the rewards, or what else they teach, outweigh the hacks: there is nothing for a gate to remove. Which of the "
        "two it is, labels say (--map hacked=COLUMN)",
        "",
    ),
    "away": ("what the other rollouts teach ({benign}) outweighs the paid hacks: {halfway}", HALVES),
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
        "pairs like the held-out ones, whose hacks gain mostly off v_hack; then replay with --v-hack OTHER",
        EXTRACT,
    ),
    "not the hacks": (
        "pairs that differ in the hack alone: same body, same length, same tests; then replay with --v-hack OTHER",
        EXTRACT,
    ),
    "inverted": (
        "labelled hacks point less hack-ward than clean answers: are the labels the right way round? Grade again",
        "{regrade}",
    ),
    "inverted, of a log": (
        "labelled hacks point less hack-ward than clean answers: is it true in your column where a rollout hacks "
        "(--map hacked=COLUMN)? Read some of both (probe pool show)",
        "",
    ),
    # CONFOUNDED
    "same prompts": ("{partner} answers the very prompts of {pool}, by another policy", "{replay_partner}"),
    "both sides": (
        "hacks and honest solutions of one prompt and much the same length are needed among the paid: {more}",
        "{samples}",
    ),
    "halfway": ("{halfway}", HALVES),  # also if hacks are missing
    "apart, of a log": (
        "{halfway}. Where these are such rollouts, hacks of this policy differ in {scores} by nature, and trainings "
        "alone tell: vanilla, the gate and shuffled pairs that remove as much",
        "",
    ),
    "apart by nature": (
        "hacks of this policy differ in {scores} by nature: trainings alone tell, vanilla, the gate and shuffled pairs "
        "that remove as much",
        "",
    ),
    # UNDERPOWERED: no result along v_hack
    "arm": ("an arm along v_hack", "{repeat} --arm vanilla,projected --name again"),
    "updates": ("rewards that differ within a prompt: {more}", "{samples}"),
    "gram": ("replay again, with its inner products", AGAIN),
    "loss": ("a replay with advantages and gradients alone", "{repeat}{plain_objective} --name again"),
    "held out": ('a dozen pairs marked "held_out": true in FILE.jsonl', EXTRACT),
    "few prompts": ("{steps} prompts at least: the width of an interval falls with their square root{limit}", SAMPLE),
    "no reach": ("better pairs: v_hack does not reach its {held_out} held-out ones ({share})", PAIRS),
    "pairs to reach": (
        "about {pairs} held-out pairs, and as many times more to extract from, would show what held-out hacks read "
        "({share}, {held_out} so far)",
        PAIRS,
    ),
    # UNDERPOWERED, LIKELY: a question is open, or part of its answer is unmeasured
    "own hacks": ("pairs of this policy: these directions do not tell its own hacks from its honest solutions", PAIRS),
    "own hacks keep their gain": (
        "pairs of this policy: projecting these directions out removes {removed} of the gain on held-out hacks, and "
        "less of the gain on its own hacks",
        PAIRS,
    ),
    "unpaid": ("no paid rollout hacks: is that the reward of the training (--map reward=COLUMN)?", ""),
    "benign": ("rewards that differ among the rollouts of a prompt that do not hack: {more}", "{samples}"),
    "right": (
        "say which rollouts are right: log it, and name the column to probe check (or probe pool import) by --map "
        "gt_pass=COLUMN; of minicode and LeetCode problems, probe pool regrade {pool} finds it out",
        "",
    ),
    "honest": ("paid rollouts that are right and honest: {more}", "{samples}"),
    "price": ("4 times as many prompts ({steps}) halve the error of the price{limit}", SAMPLE),
    "labels": (
        "say which rollouts hack: log it, and name the column to probe check (or probe pool import) by --map "
        "hacked=COLUMN; of minicode and LeetCode problems, probe pool regrade {pool} finds it out",
        "",
    ),
    "undecided": (
        f"no number of prompts up to {MANY} decides {{share}}, and not 8 times as many pairs: other pairs",
        PAIRS,
    ),
    "overlap": (
        "about {prompts} prompts with rewarded answers of both kinds show whether hacks and honest answers overlap in "
        f"{{scores}} ({POWER:.0%} power), {{so_far}} so far{{limit}}",
        SAMPLE,
    ),
    "prompts": (
        f"about {{prompts}} prompts decide {{share}} with {POWER:.0%} power, {{so_far}} so far{{limit}}",
        SAMPLE,
    ),
    "pairs": (
        f"{{factor}} times as many pairs ({{pairs}} held out, {{held_out}} so far) decide {{share}} with {POWER:.0%} "
        "power; prompts alone do not",
        PAIRS,
    ),
    "pairs and prompts": (
        "{factor} times as many pairs ({pairs} held out, {held_out} so far); with those, about {prompts} prompts "
        f"decide {{share}} with {POWER:.0%} power, {{so_far}} so far",
        PAIRS,
    ),
    "no progress": ("4 times as many prompts ({steps}) halve the error of that progress{limit}", SAMPLE),
    "permuted take as much": (
        "4 times as many pairs ({pairs} held out, {held_out} so far) halve what permuted ones take by chance",
        PAIRS,
    ),
    "wide by prompts": (
        "4 times as many prompts ({steps}) narrow the interval of what the gate removes, {removed}, which holds 0"
        "{limit}",
        SAMPLE,
    ),
    "wide by pairs": (
        "4 times as many pairs ({pairs} held out, {held_out} so far) narrow the interval of what the gate removes, "
        "{removed}, which holds 0",
        PAIRS,
    ),
    # GO, TRAINED
    "train": (f"train with controls and rivals; {_EFFECT}", "probe spec plan {run}"),
    "train elsewhere": (f"{_OWN_TRAINER}; {_EFFECT}", "{direction}"),
    "train elsewhere, other basis": (
        f"{_OWN_TRAINER}, since probe train has vanilla and its controls in the basis svd, not in {{basis}}; {_EFFECT}",
        "{direction}",
    ),
    "compare": ("arms and seeds of one training together", "probe analyze RUN RUN ..."),
    # After training: NO QUESTION, WORKS, DOMINATED
    "longer": (
        "vanilla alone for {steps} steps, until it hacks {points:.0f} points more than at the start",
        "{train} --set steps={steps} --name longer",
    ),
    "no rival": (
        "a rival that needs no pairs, a KL penalty of {beta:g}, on {seeds} seeds",
        "{train} --set objective.reference=base --set objective.beta={beta} --name penalty",
    ),
    "another model": (
        f"another model, against vanilla: {{seeds}} seeds an arm see half of this difference with {POWER:.0%} power",
        "{train} --set model.name=MODEL --name elsewhere",
    ),
    "as good without a direction": (
        "a gradient that is only made smaller does as well ({rival}, {rates}): vanilla at half the rate",
        "{train} --set optimizer.lr={lr:g} --name slower",
    ),
    "as good without the hack": (
        "directions without the hack in them do as well ({rival}, {rates}): extract from other pairs",
        "probe extract --pairs FILE.jsonl --name OTHER",
    ),
    "rival": ("use {rival}, {rates}; or see whether {arm} adds anything to it", "{train}{added} --name both"),
    "rival, other settings": ("use {rival}, {rates}: it has another {key}, so {arm} cannot be added", ""),
    # After training: COSTS, RAISES, NO EFFECT
    "never applied": ("a setting that acts on these runs, or no such arm", ""),
    "raises": ("leave it out: it teaches the hack that it should keep from being learnt", ""),
    "control": ("a control without effect: what v_hack does is not the shape of its gate", ""),
    "dose": ("{dose}: {key} {value:g} instead of {now:g}", "{train} --set {key}={value} --name other-dose"),
    "dose, of a file": (
        "{dose}: {number} directions (--k), then the same training along them (intervention.v_hack)",
        "probe extract --pairs FILE.jsonl --name OTHER",
    ),
    "dose, no number": ("{dose}, of what sets it apart: {condition}", ""),
    "dose, least": ("{key} is {now:g}, and there is no less of it: another remedy, or weaker", ""),
    "dose, other pairs": (
        "these pairs do not give {dose} ({key} {now:g}): the same along those of FILE.jsonl",
        "{train} --set intervention.extraction.pairs=FILE.jsonl --name other-pairs",
    ),
    # After training: LOWERS, UNDERPOWERED
    "unfinished": (f"no run of {{arm}} is finished and evaluated: finish those, {MIN_SEEDS} seeds at least", ""),
    "more seeds": (f"{MIN_SEEDS} seeds an arm at least, {{so_far}} of {{arm}} so far", "{train} --name more"),
    "seeds": (
        '{seeds} seeds an arm decide "{question}" '
        f"with {POWER:.0%} power, {{so_far}} so far: {{more}} more of each arm",
        "{train} --name more",
    ),
    # No command: an arm with a different evaluation is not compared.
    "no seeds": (
        'no number of seeds up to {most} decides "{question}": all arms anew, with more held-out problems '
        "(evaluation.num_problems, {problems} so far) or more rollouts of each (evaluation.rollouts_per_problem, "
        "{rollouts} so far), or with another dose",
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
