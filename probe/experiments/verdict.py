"""Verdict of `probe analyze SPEC`: judge the runs of a sweep by the registered criteria, and decide (`SpecVerdict`).

    runs -> analyses -> an estimate and an answer for each criterion (`probe.analysis.measures`, `criteria`)
         -> the verdict on the replay, the first decision with all requirements met, and cautions (`cautions`)

With frozen weights the unit is the prompt, and a condition has one run. In training, steps are autocorrelated, so each
run gives one number and the unit is the seed (METHOD section 6).
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from probe.analysis.analyze import Analysis, analyze
from probe.analysis.horizon import cautions_of
from probe.analysis.measures import STEPS, are_identical, by_seed, never_binds, of_replay, of_training
from probe.analysis.verdict.trained import judge_arms
from probe.analysis.verdict.trained_arms import TrainedArm, Trainings, of_runs, same_records
from probe.analysis.verdict.verdict import Finding, Verdict
from probe.experiments.cautions import cautions
from probe.experiments.criteria import evaluate
from probe.experiments.jobs import Job, runs_of
from probe.experiments.load import decide, unmet
from probe.experiments.spec import OUTCOME, VERDICT, Criterion, Spec
from probe.records.run import out_of, read_run
from probe.settings.words import Answer
from replay_pools.base.errors import InputError

Analyses = Mapping[tuple[str, str], Analysis]  # {(run, condition): analysis}
# Numbers of every seed of a training sweep that are printed. To show another, add its name.
SHOWN = (
    *("hack_start", "hack_final", "exploit_final", "solve_final", "margin_final"),
    *("cos_update", "hackward_frac_update", "hackward_frac_moved", "direction_overlap", "kl/mean"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecVerdict:
    """The verdict of an experiment."""

    spec: Spec
    runs: list[Job]
    verdict: Verdict  # the decision; findings are the criteria, caveats say why no earlier decision was taken
    replay: Verdict | None  # on the run under the primary's condition; None: its runs train, or none is complete
    arms: list[Verdict]  # every trained arm and condition against vanilla; empty for a replay
    trained: list[TrainedArm]  # the arms that `arms` judges, with the baseline first
    outcomes: dict[str, dict[str, dict[str, float]]]  # {trained arm: {name of SHOWN: {seed: value}}}

    @property
    def primary(self) -> str:
        """Verdict on the primary criterion."""
        return next(finding.says for finding in self.verdict.findings if finding.role == "primary")

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and None; a run has its progress and the version of its spec."""
        return {
            "spec": self.spec.name,
            "sha256": self.spec.sha256,
            "question": self.spec.experiment.question,
            "runs": [{"name": one.name, "complete": one.complete, "spec_status": one.spec_status} for one in self.runs],
            "verdict": asdict(self.verdict),
            "replay": None if self.replay is None else asdict(self.replay),
            "arms": [asdict(arm) for arm in self.arms],
            "outcomes": self.outcomes,
        }


def evaluate_spec(spec: Spec, out_dir: Path, seed: int = 0) -> SpecVerdict:
    """Judge the analyses of the complete runs of a sweep; arguments and errors as `analyse_runs`."""
    return judge(spec, out_dir, analyse_runs(spec, out_dir, seed))


def analyse_runs(spec: Spec, out_dir: Path, seed: int = 0) -> Analyses:
    """Analyse every complete run of a sweep under each of its conditions.

    Args:
        seed: as for `probe.analysis.analyze`.

    Raises:
        InputError: no run of the sweep is complete.
    """
    done = [run for run in runs_of(spec, out_dir) if run.complete]
    if not done:
        fix = f"run: probe spec sweep {shlex.quote(str(spec.path))}"
        raise InputError(out_dir, expected=f"finished runs of {spec.name}", found="none", fix=fix)
    read = [(run, read_run(run.directory)) for run in done]
    records = [record for _, record in read]
    analyses: dict[tuple[str, str], Analysis] = {}
    for run, record in read:
        for condition in run.conditions:
            # A training run has one condition, and its records lack the spec's name for it.
            named = None if record.settings.verb == "train" else condition
            analyses[run.name, condition] = analyze(record, named, others=records, seed=seed).settle()
    return analyses


def judge(spec: Spec, out_dir: Path, analyses: Analyses) -> SpecVerdict:
    """Judge every criterion on the analyses of `analyse_runs`, and choose the decision."""
    runs = runs_of(spec, out_dir)
    done = [run for run in runs if run.complete]
    cells = _trained(spec, done, analyses)
    trained, baseline = [*cells.values()], None if spec.baseline is None else cells.get(spec.baseline)
    trainings = None
    if baseline is not None:
        trainings = Trainings(baseline=baseline, treated=trained[1:], out=out_of(done[0].directory))
    findings = [_criterion(criterion, spec, runs, analyses, cells, trainings) for criterion in spec.criteria]
    (condition, _), replay = spec.judged, None
    if spec.condition(condition).frozen:
        names = (run.name for run in done if condition in run.conditions)
        replay = next((analyses[name, condition].verdict for name in names), None)
    arms = [] if trainings is None else judge_arms(trainings)
    words: dict[str, str] = {finding.name: finding.says for finding in findings}
    words[VERDICT] = replay.word if replay is not None else "no run"
    for arm in arms:
        if (arm.about["condition"] or spec.conditions[0].name, arm.about["arm"]) == spec.judged:
            words[OUTCOME] = arm.word
    decision, caveats = decide(spec, words), []
    for earlier in spec.decisions[: spec.decisions.index(decision)]:
        caveats.append(f"not {earlier.name}: {', '.join(unmet(earlier, words))}")
    return SpecVerdict(
        spec=spec,
        runs=runs,
        verdict=Verdict(
            about={"spec": spec.name},
            word=decision.name,
            sentence=decision.then,
            findings=findings,
            caveats=[*caveats, *cautions_of(trained, baseline), *cautions(spec, runs), *_broken(analyses)],
        ),
        replay=replay,
        arms=arms,
        trained=trained,
        outcomes={
            arm.name: {name: values for name in SHOWN if (values := by_seed(name, arm))} for arm in trained if arm.runs
        },
    )


def _criterion(
    criterion: Criterion,
    spec: Spec,
    runs: Sequence[Job],
    analyses: Analyses,
    cells: Mapping[tuple[str, str], TrainedArm],
    trainings: Trainings | None,
) -> Finding:
    """Measure and judge one criterion."""
    sides = spec.sides_of(criterion)[: 1 + criterion.compared]
    name, finished = criterion.estimate, [run for run in runs if run.complete]
    measured = [(arm, _runs_of(finished, analyses, condition, arm)) for condition, arm in sides]
    vacuous, is_evidence = "", criterion.compared and criterion.role != "mechanism"
    if spec.condition(sides[0][0]).frozen:
        found = of_replay(name, *measured)
        if is_evidence and are_identical(name, *measured):
            vacuous = "both sides are identical in every prompt: nothing was compared"
    else:
        arms = []
        for side, (arm, of_side) in zip(sides, measured, strict=True):
            arms.append(cells.get(side) or TrainedArm(condition=side[0], arm=arm, runs=of_side))
        found = of_training(name, trainings, *arms)
        if is_evidence and (seeds := same_records(*arms)):
            text = f"both sides have the same records in seeds {', '.join(map(str, seeds))}"
            vacuous = f"{text}: nothing was compared"
    if any(never_binds(name, *side) for side in measured):
        vacuous = "the cap is not below the largest advantage that a group can have"
    judged = evaluate(criterion, found, vacuous)
    if name == STEPS and judged.says is Answer.FAIL:
        condition, arm = sides[0]
        missing = sum(arm in run.arms and condition in run.conditions and not run.complete for run in runs)
        if missing:  # the count may still rise
            text = f"{missing} of its runs are not complete; {judged.text}"
            return replace(judged, says=Answer.INCONCLUSIVE, text=text)
    return judged


def _runs_of(done: Sequence[Job], analyses: Analyses, condition: str, arm: str) -> list[Analysis]:
    """Return the analyses of the complete runs of one arm under one condition."""
    return [analyses[run.name, condition] for run in done if condition in run.conditions and arm in run.arms]


def _broken(analyses: Analyses) -> list[str]:
    """Return a caution for each part of the measurement that is broken in some runs."""
    runs_of_part: dict[str, list[str]] = {}
    for (run, _), analysis in analyses.items():
        for part in analysis.validity:
            if part.says is Answer.BROKEN:
                runs_of_part.setdefault(f"{part.name} ({part.text})", []).append(run)
    return [f"BROKEN: {part}, in {', '.join(dict.fromkeys(runs))}" for part, runs in runs_of_part.items()]


def _trained(spec: Spec, done: Sequence[Job], analyses: Analyses) -> dict[tuple[str, str], TrainedArm]:
    """Return {(condition, arm): its runs} of a training, with the baseline first."""
    if spec.settings["verb"] != "train":
        return {}
    arms = {}
    for condition in spec.conditions:
        for arm in condition.arms:
            runs = _runs_of(done, analyses, condition.name, arm)
            shown = condition.name if len(spec.conditions) > 1 else ""
            arms[condition.name, arm] = of_runs(shown, arm, runs, condition.config.remedy)
    return {cell: arms[cell] for cell in sorted(arms, key=lambda cell: cell != spec.baseline)}
