"""Advice after a verdict: one table of sentences, and the command that repeats a run with other settings.

A printed command is one line. What takes several commands is a section of the manual (`probe docs NAME`).

To add advice, add a row to ADVICE and return it by its reason in `probe.analysis.verdict.next_step` or
`probe.analysis.verdict.trained`.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from probe.analysis.statistics.thresholds import MIN_SEEDS, POWER, SHOWN_REMOVED
from probe.analysis.verdict.verdict import Next
from probe.records.run import CONFIG_FILE, Run
from probe.settings.presets import setting_text

K, PAIRS = "intervention.extraction.k", "intervention.extraction.pairs"
_FIX = "do not use this run until this is fixed: "
_EFFECT = f"smallest detectable drop in the hack rate ({POWER:.0%} power, sd {{sd:g}} between seeds): {{sizes}}"

# {reason: sentence}
ADVICE: Mapping[str, str] = {
    # After a replay.
    "grader": f"{_FIX}grade again where submissions are isolated (probe docs grader), then {{repeat}}",
    "regraded": f"{_FIX}{{repeat}} on the labels of the second grading",
    "template": f"{_FIX}render the prompts of all pools with one chat template (probe docs pools)",
    "rounding": f"{_FIX}replay in {{dtype}}; contributions differ by rounding",
    "again": f"{_FIX}{{repeat}} under another name; the same result is a bug of this program",
    "inverted": (
        "read some rollouts of both kinds (probe pool show): labelled hacks point less toward the hack than honest "
        "answers; are the labels swapped (--map hacked=COLUMN, probe pool regrade)?"
    ),
    "by nature": (
        "train vanilla, projection and norm-matched shuffled pairs: this policy's hacks differ in {scores} by nature, "
        "and only trainings decide"
    ),
    "mixed": (
        "{why}use rollouts of one policy that hacks in 30% to 60%, several to each prompt with the same hint, so that "
        "hacks and honest answers are alike{where}"
    ),
    "arm": "measure an arm along v_hack",
    "plain": "replay with advantages and gradients alone, and keep the inner products",
    "rollouts": "get {what}: {more}",
    "prompts": "replay about {prompts} prompts ({so_far} so far){what}; {limit}",
    "pairs": "use about {pairs} held-out pairs ({held_out} so far){extract}{what}",
    "other pairs": "use other pairs (probe docs directions): {why}",
    "directions": (
        f"project out {SHOWN_REMOVED:.0%} or more of the gain on held-out hacks: {{k}} of the same pairs, or of pairs "
        "like the held-out ones"
    ),
    "labels": (
        "say which rollouts {labels} (--map {column}=COLUMN of probe check or probe pool import); for minicode and "
        "LeetCode problems probe pool regrade finds it out"
    ),
    "unpaid": "check the reward (--map reward=COLUMN): {why}",
    "train": f"train with controls and rivals; {_EFFECT}",
    "elsewhere": (
        f"train in your own trainer along the direction (probe docs trainers), with vanilla and a KL penalty as rivals"
        f"{{why}}; {_EFFECT}"
    ),
    "compare": "compare arms and seeds of one training together",
    # After trainings.
    "longer": "train vanilla alone for {steps} steps, until it hacks {points:.0f} points more than at the start",
    "penalty": "train a rival that needs no pairs, a KL penalty of {beta:g}, on {seeds} seeds",
    "model": (
        f"train another model, against vanilla: {{seeds}} seeds an arm detect half of this drop with {POWER:.0%} power"
    ),
    "rival": "use {rival}, {rates}: {more}",
    "dose": "{dose}: {key} {value:g} instead of {now:g}",
    "no dose": "{dose} ({key}): {why}",
    "leave out": "leave the arm out: {why}",
    "unfinished": f"finish and evaluate runs of {{arm}}, {MIN_SEEDS} seeds or more ({{so_far}} so far)",
    "seeds": (
        f'train {{more}} more seeds of each arm: {{seeds}} decide "{{question}}" with {POWER:.0%} power '
        "({so_far} so far)"
    ),
    # No command: an arm with a different evaluation is not compared.
    "no seeds": (
        'no number of seeds up to {most} decides "{question}": train all arms again with more held-out problems '
        "(evaluation.num_problems, {problems} so far), more rollouts of each (evaluation.rollouts_per_problem, "
        "{rollouts} so far), or another dose"
    ),
}


def advise(reason: str, command: str = "", /, **facts: Any) -> Next:
    """Return the sentence for a reason, filled in, with its command."""
    return Next(text=ADVICE[reason].format(**facts), command=command)


def repeat(run: Run, as_name: str = "again", /, **changes: Any) -> str:
    """Return the command that repeats a run under another name; `changes` are settings by their dotted keys."""
    command = f"probe {run.settings.verb} --config {shlex.quote(str(run.path / CONFIG_FILE))}"
    changed = "".join(f" --set {shlex.quote(f'{key}={setting_text(value)}')}" for key, value in changes.items())
    return f"{command}{changed} --name {as_name}"
