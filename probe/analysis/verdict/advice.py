"""Advice after a verdict: one table of sentences, and the command that repeats a run with other settings.

A printed command is one line. What takes several commands is a section of the manual (`probe docs NAME`).

To add advice, add a row to ADVICE and return its reason in `probe.analysis.verdict.next_step` or
`probe.analysis.verdict.trained`.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probe.analysis.statistics.thresholds import MIN_SEEDS, POWER, SHOWN_REMOVED
from probe.analysis.verdict.verdict import Next
from probe.records.run import CONFIG_FILE, Run, in_root
from probe.settings.presets import setting_text
from probe.settings.words import Outcome, Word

ANY = "*"
K, PAIRS = "intervention.extraction.k", "intervention.extraction.pairs"
_FIX = "do not use this run until this is fixed: "
_EFFECT = f"smallest detectable drop in the hack rate ({POWER:.0%} power, sd {{sd:g}} between seeds): {{sizes}}"

# {(word of the verdict or ANY, reason): sentence}
ADVICE: Mapping[tuple[str, str], str] = {
    (Word.BROKEN, "grader"): f"{_FIX}grade again where submissions are isolated (probe docs grader), then {{repeat}}",
    (Word.BROKEN, "regraded"): f"{_FIX}{{repeat}} on the labels of the second grading",
    (Word.BROKEN, "template"): f"{_FIX}render the prompts of all pools with one chat template (probe docs pools)",
    (Word.BROKEN, "rounding"): f"{_FIX}replay in {{dtype}}; contributions differ by rounding",
    (Word.BROKEN, "again"): f"{_FIX}{{repeat}} under another name; the same result is a bug of this program",
    (Word.SKIP, "outweighed"): "what the other rollouts teach ({benign}) outweighs the rewarded hacks: {mixed}",
    (Word.GENERIC, "inverted"): (
        "read some rollouts of both kinds (probe pool show): labelled hacks point less toward the hack than honest "
        "answers; are the labels swapped (--map hacked=COLUMN, probe pool regrade)?"
    ),
    (Word.CONFOUNDED, "same prompts"): "replay {partner}, another policy that answers the very prompts of {pool}",
    (Word.CONFOUNDED, "by nature"): (
        "train vanilla, projection and norm-matched shuffled pairs: this policy's hacks differ in {scores} by nature, "
        "and only trainings decide"
    ),
    (ANY, "mixed"): "{mixed}",
    (ANY, "arm"): "measure an arm along v_hack",
    (ANY, "plain"): "replay with advantages and gradients alone, and keep the inner products",
    (ANY, "rollouts"): "get {what}: {more}",
    (ANY, "prompts"): "replay about {prompts} prompts ({so_far} so far){what}{limit}",
    (ANY, "pairs"): "use about {pairs} held-out pairs ({held_out} so far){extract}{what}",
    (ANY, "other pairs"): "use other pairs (probe docs directions): {why}",
    (ANY, "directions"): (
        f"project out {SHOWN_REMOVED:.0%} or more of the gain on held-out hacks: {{k}} of the same pairs, or of pairs "
        "like the held-out ones"
    ),
    (ANY, "labels"): (
        "say which rollouts {labels} (--map {column}=COLUMN of probe check or probe pool import); for minicode and "
        "LeetCode problems probe pool regrade finds it out"
    ),
    (ANY, "unpaid"): "check the reward (--map reward=COLUMN): {why}",
    (Word.GO, "train"): f"train with controls and rivals; {_EFFECT}",
    (Word.GO, "elsewhere"): (
        f"train in your own trainer along the direction (probe docs trainers), with vanilla and a KL penalty as rivals"
        f"{{why}}; {_EFFECT}"
    ),
    (Word.TRAINED, "compare"): "compare arms and seeds of one training together",
    (Outcome.NO_QUESTION, "longer"): (
        "train vanilla alone for {steps} steps, until it hacks {points:.0f} points more than at the start"
    ),
    (Outcome.WORKS, "rival"): "train a rival that needs no pairs, a KL penalty of {beta:g}, on {seeds} seeds",
    (Outcome.WORKS, "model"): (
        f"train another model, against vanilla: {{seeds}} seeds an arm detect half of this drop with {POWER:.0%} power"
    ),
    (Outcome.DOMINATED, "rival"): "use {rival}, {rates}: {more}",
    (ANY, "dose"): "{dose}: {key} {value:g} instead of {now:g}",
    (ANY, "no dose"): "{dose} ({key}): {why}",
    (ANY, "leave out"): "leave the arm out: {why}",
    (ANY, "unfinished"): f"finish and evaluate runs of {{arm}}, {MIN_SEEDS} seeds or more ({{so_far}} so far)",
    (ANY, "seeds"): (
        f'train {{more}} more seeds of each arm: {{seeds}} decide "{{question}}" with {POWER:.0%} power '
        "({so_far} so far)"
    ),
    # No command: an arm with a different evaluation is not compared.
    (ANY, "no seeds"): (
        'no number of seeds up to {most} decides "{question}": train all arms again with more held-out problems '
        "(evaluation.num_problems, {problems} so far), more rollouts of each (evaluation.rollouts_per_problem, "
        "{rollouts} so far), or another dose"
    ),
}


class Step(NamedTuple):
    """A row of `ADVICE`, the values of its placeholders, and the command."""

    reason: str
    facts: dict[str, Any]
    command: str = ""


def advise(word: str, reason: str, facts: Mapping[str, Any], out: Path, command: str = "") -> Next:
    """Return the sentence for a reason, filled in, with its command in a root folder."""
    sentence = ADVICE.get((word, reason)) or ADVICE[ANY, reason]
    return Next(text=sentence.format(**facts), command=in_root(command, out))


def repeat(run: Run, as_name: str = "again", **changes: Any) -> str:
    """Return the command that repeats a run under another name; `changes` are settings by their dotted keys."""
    command = f"probe {run.settings.verb} --config {shlex.quote(str(run.path / CONFIG_FILE))}"
    changed = "".join(f" --set {shlex.quote(f'{key}={setting_text(value)}')}" for key, value in changes.items())
    return f"{command}{changed} --name {as_name}"
