"""What to do after the verdict on a trained arm: the next training with its number, as a command that can be run.

To advise on another verdict: write a function that takes answers, arm and trainings, and add a row to _NEXT.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from extraction.pairs import selected_pairs
from extraction.words import ExtractionSettings
from probe.analysis.statistics.crossed import MANY
from probe.analysis.statistics.thresholds import MATERIAL_RATE, POWER
from probe.analysis.trained.arms import TrainedArm, Trainings, excess
from probe.analysis.trained.command import BESIDE, train_command
from probe.analysis.trained.questions import Answer
from probe.analysis.verdict.advice import Next
from probe.analysis.verdict.run_options import K
from probe.records.root import in_root
from probe.settings.words import Outcome
from replay_pools.errors import InputError
from replay_pools.storage.tables import decode, flat

PENALTY = 1.0  # beta of the KL penalty that is proposed as a rival: what spec/kl-control.md calls fixed
BETA, V_HACK, PAIRS = "objective.beta", "intervention.v_hack", "intervention.extraction.pairs"
COUNTS = (K, "remedy.components")  # doses that are whole numbers, of which pairs give only so many


def next_step(outcome: Outcome, answers: Sequence[Answer], arm: TrainedArm, trainings: Trainings) -> Next:
    """The next step after a verdict of `decision`, in the root folder of the trainings."""
    step = _NEXT[outcome](answers, arm, trainings)
    return Next(command=in_root(step.command, trainings.out), text=step.text)


def undecided(answers: Sequence[Answer]) -> list[Answer]:
    """The answers that leave a verdict open; a rival that nobody trained does not."""
    unmeasured = [answer for answer in answers if answer.says == "unmeasured" and answer.name != "better"]
    return unmeasured + [answer for answer in answers if answer.says == "unclear"]


def _no_question(answers: Sequence[Answer], arm: TrainedArm, trainings: Trainings) -> Next:
    vanilla = trainings.baseline
    assert vanilla is not None  # its rise was measured
    steps = 2 * int(vanilla.runs[0].settings["steps"])
    return Next(
        command=_train(vanilla, vanilla.arm, "longer", trainings, {"steps": steps}),
        text=f"vanilla alone for {steps} steps, until it hacks {100 * MATERIAL_RATE:.0f} points more than at the start",
    )


def _works(answers: Sequence[Answer], arm: TrainedArm, trainings: Trainings) -> Next:
    vanilla = trainings.baseline
    assert vanilla is not None
    if arm.needs_pairs and not trainings.rivals(arm):
        penalty = {"objective.reference": "base", BETA: PENALTY}
        return Next(
            command=_train(vanilla, vanilla.arm, "penalty", trainings, penalty),
            text=f"a rival that needs no pairs, a KL penalty of {PENALTY:g}, on {len(arm.seeds)} seeds",
        )
    less = excess(vanilla, arm, "hack")
    assert less is not None
    seeds = less.seeds_to_see(less.value / 2)
    many = f"{seeds} seeds an arm see" if seeds is not None else f"not even {MANY} seeds an arm see"
    return Next(
        command=_train(arm, arm.arm, "elsewhere", trainings, {"model.name": "MODEL"}),
        text=f"another model, against vanilla: {many} half of this difference with {POWER:.0%} power",
    )


def _dominated(answers: Sequence[Answer], arm: TrainedArm, trainings: Trainings) -> Next:
    name = answers[-1].rival
    rival = next(rival for rival in trainings.rivals(arm) if rival.name == name)
    rates = f"{rival.mean('hack', 'final'):.0%} hack and {rival.mean('solve', 'final'):.0%} solve"
    if rival.arm != "vanilla":
        return Next(
            command="probe extract --pairs FILE.jsonl --name OTHER",
            text=f"directions without the hack in them do as well ({rival.name}, {rates}): extract from other pairs",
        )
    added, there = _apart(arm, trainings), _apart(rival, trainings)
    clash = next((key for key in added if key in there and there[key] != added[key]), None)
    if clash is not None:
        return Next(
            command="", text=f"use {rival.name}, {rates}: it has another {clash}, so {arm.name} cannot be added"
        )
    return Next(
        command=_train(rival, arm.arm, "both", trainings, added),
        text=f"use {rival.name}, {rates}; or see whether {arm.name} adds anything to it",
    )


def _costs(answers: Sequence[Answer], arm: TrainedArm, trainings: Trainings) -> Next:
    return _another_dose(arm, trainings, 0.5, "half of it")


def _no_effect(answers: Sequence[Answer], arm: TrainedArm, trainings: Trainings) -> Next:
    if arm.arm != "vanilla" and not arm.needs_pairs:
        return Next(command="", text="a control without effect: what v_hack does is not the shape of its gate")
    return _another_dose(arm, trainings, 2, "twice as much of it")


def _another_dose(arm: TrainedArm, trainings: Trainings, factor: float, words: str) -> Next:
    """The same with more or less of a remedy or a penalty, or with more or fewer directions."""
    settings = flat(arm.runs[0].settings)
    if arm.arm != "vanilla":
        key = K
    elif arm.remedy is not None:
        key = "" if arm.remedy.dose is None else f"remedy.{arm.remedy.dose}"
    else:
        key = BETA if BETA in _apart(arm, trainings) else ""
    if key == K and settings[V_HACK] is not None:
        number = "more" if factor > 1 else "fewer"
        return Next(
            command="probe extract --pairs FILE.jsonl --name OTHER",
            text=f"{words}: {number} directions (--k), then the same training along them ({V_HACK})",
        )
    value = settings[key] if key else None
    if not value:
        return Next(command="", text=f"{words}, of what sets it apart: {arm.condition}")
    other = max(round(factor * value), 1) if key in COUNTS else factor * value
    if other == value:
        return Next(command="", text=f"{key} is {value:g}, and there is no less of it: another remedy, or weaker")
    if key in COUNTS and other > _most(key, arm):
        return Next(
            command=_train(arm, arm.arm, "other-pairs", trainings, {PAIRS: "FILE.jsonl"}),
            text=f"these pairs do not give {words} ({key} {value:g}): the same along those of FILE.jsonl",
        )
    return Next(
        command=_train(arm, arm.arm, "other-dose", trainings, {key: other}),
        text=f"{words}: {key} {other:g} instead of {value:g}",
    )


def _most(key: str, arm: TrainedArm) -> int:
    """How large a count can be with the pairs of a training; 0 where they are not there any more."""
    extraction = decode(ExtractionSettings, arm.runs[0].settings["intervention"]["extraction"], "settings")
    if key == K and extraction.method == "mean":
        return 1
    try:
        return sum(not pair.held_out for pair in selected_pairs(extraction))
    except InputError:
        return 0


def _underpowered(answers: Sequence[Answer], arm: TrainedArm, trainings: Trainings) -> Next:
    """More seeds, first of whichever side has fewer."""
    vanilla = trainings.baseline
    if vanilla is None or not vanilla.runs or not arm.runs:
        return _unfinished(arm.name if vanilla is not None and vanilla.runs else "vanilla")
    open_answer = undecided(answers)[0]
    question, seeds = _question(open_answer), open_answer.needed
    other = vanilla
    if open_answer.name == "better":
        other = next(rival for rival in trainings.rivals(arm) if rival.name == open_answer.rival)
    behind = min((other, arm), key=lambda side: len(side.seeds))
    if not behind.runs:
        return _unfinished(behind.name)
    if open_answer.n < 2:
        text = f"2 seeds an arm at least, {len(behind.seeds)} of {behind.name} so far"
    elif seeds is None:
        # No command: an arm that is evaluated otherwise than the others is not compared with them.
        evaluation = arm.runs[0].settings["evaluation"]
        text = (
            f"no number of seeds up to {MANY} decides {question}: all arms anew, with more held-out problems "
            f"(evaluation.num_problems, {evaluation['num_problems']} so far) or more rollouts of each "
            f"(evaluation.rollouts_per_problem, {evaluation['rollouts_per_problem']} so far), or with another dose"
        )
        return Next(command="", text=text)
    else:
        text = (
            f"{seeds} seeds an arm decide {question} with {POWER:.0%} power (Welch), {open_answer.n} so far: "
            f"{seeds - open_answer.n} more of each arm"
        )
    return Next(command=_train(behind, behind.arm, "more", trainings), text=text)


def _unfinished(name: str) -> Next:
    return Next(command="", text=f"no run of {name} is finished and evaluated: finish those, 2 seeds at least")


def _apart(arm: TrainedArm, trainings: Trainings) -> dict[str, Any]:
    """{key: value} of the settings of an arm that are not those of vanilla."""
    vanilla = trainings.baseline
    assert vanilla is not None
    here, there = flat(arm.runs[0].settings), flat(vanilla.runs[0].settings)
    return {key: value for key, value in here.items() if key not in BESIDE and value != there.get(key)}


def _question(answer: Answer) -> str:
    return f'"{answer.question}"'


def _train(
    arm: TrainedArm, as_arm: str, name: str, trainings: Trainings, changes: Mapping[str, Any] | None = None
) -> str:
    """A training like the runs of an arm, on the first seed that no run here had."""
    known = [seed for side in (trainings.baseline, *trainings.treated) if side is not None for seed in side.seeds]
    return train_command(arm.runs[0].settings, arm=as_arm, seed=max(known) + 1, name=name, changes=changes)


_NEXT: Mapping[Outcome, Callable[[Sequence[Answer], TrainedArm, Trainings], Next]] = {
    "NO QUESTION": _no_question,
    "WORKS": _works,
    "DOMINATED": _dominated,
    "COSTS": _costs,
    "NO EFFECT": _no_effect,
    "UNDERPOWERED": _underpowered,
}
