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
from probe.experiments.jobs import Job, run_jobs
from probe.experiments.spec import OUTCOME, VERDICT, Cell, Criterion, Spec
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
    analyses: Analyses  # of the complete runs
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
    """Analyse every complete run of a sweep under each of its conditions, judge every criterion, and decide.

    Args:
        seed: as for `probe.analysis.analyze`.

    Raises:
        InputError: no run of the sweep is complete.
    """
    runs = run_jobs(spec, out_dir)
    done = [run for run in runs if run.complete]
    if not done:
        fix = f"run: probe spec sweep {shlex.quote(str(spec.path))}"
        raise InputError(out_dir, expected=f"finished runs of {spec.name}", found="none", fix=fix)
    read = {run.name: read_run(run.directory) for run in done}
    # A training run has one condition, and its records lack the spec's name for it.
    analyses = {
        (run.name, name): analyze(
            read[run.name], None if spec.trains else name, others=[*read.values()], seed=seed
        ).settle()
        for run in done
        for name in run.conditions
    }
    cells = {cell: _runs_of(spec, cell, done, analyses) for cell in spec.cells}
    (condition, _), trainings, trained = spec.judged, None, list[TrainedArm]()
    if spec.trains:
        trained = [cells[cell] for cell in sorted(cells, key=lambda cell: cell != spec.baseline)]
        if spec.baseline is not None:
            trainings = Trainings(baseline=trained[0], treated=trained[1:], out=out_of(done[0].directory))
    findings = [_criterion(criterion, spec, runs, cells, trainings) for criterion in spec.criteria]
    words: dict[str, str] = {finding.name: finding.says for finding in findings}
    replay = None
    if spec.condition(condition).frozen:
        names = (run.name for run in done if condition in run.conditions)
        replay = next((analyses[name, condition].verdict for name in names), None)
    words[VERDICT] = replay.word if replay is not None else "no run"
    arms = [] if trainings is None else judge_arms(trainings)
    for arm in arms:
        if (arm.about["condition"] or condition, arm.about["arm"]) == spec.judged:
            words[OUTCOME] = arm.word
    decision = spec.decide(words)
    earlier = spec.decisions[: spec.decisions.index(decision)]
    broken: dict[str, list[str]] = {}  # {part of the measurement: runs}
    for (run, _), analysis in analyses.items():
        for part in analysis.validity:
            if part.says is Answer.BROKEN:
                broken.setdefault(f"{part.name} ({part.text})", []).append(run)
    return SpecVerdict(
        spec=spec,
        runs=runs,
        analyses=analyses,
        verdict=Verdict(
            about={"spec": spec.name},
            word=decision.name,
            sentence=decision.then,
            findings=findings,
            caveats=[
                *(f"not {other.name}: {', '.join(other.unmet(words))}" for other in earlier),
                *cautions_of(trained, None if trainings is None else trained[0]),
                *cautions(spec, runs),
                *(f"BROKEN: {part}, in {', '.join(dict.fromkeys(names))}" for part, names in broken.items()),
            ],
        ),
        replay=replay,
        arms=arms,
        trained=trained,
        outcomes={
            arm.name: {name: values for name in SHOWN if (values := by_seed(name, arm))} for arm in trained if arm.runs
        },
    )


def _runs_of(spec: Spec, cell: Cell, done: Sequence[Job], analyses: Analyses) -> TrainedArm:
    """Return the analyses of the complete runs of a cell; of a training, of its evaluated runs."""
    condition, arm = cell
    runs = [analyses[run.name, condition] for run in done if run.makes(cell)]
    if not spec.trains:
        return TrainedArm(condition=condition, arm=arm, runs=runs)
    shown = condition if len(spec.conditions) > 1 else ""
    return of_runs(shown, arm, runs, spec.condition(condition).config.remedy)


def _criterion(
    criterion: Criterion,
    spec: Spec,
    runs: Sequence[Job],
    cells: Mapping[Cell, TrainedArm],
    trainings: Trainings | None,
) -> Finding:
    """Measure and judge one criterion."""
    name, arms = criterion.estimate, [cells[cell] for cell in criterion.sides]
    vacuous, is_evidence = "", len(arms) > 1 and criterion.role != "mechanism"
    if spec.condition(criterion.sides[0][0]).frozen:
        estimate = of_replay(name, *arms)
        if is_evidence and are_identical(name, *arms):
            vacuous = "both sides are identical in every prompt: nothing was compared"
    else:
        estimate = of_training(name, trainings, *arms)
        if is_evidence and (seeds := same_records(*arms)):
            text = f"both sides have the same records in seeds {', '.join(map(str, seeds))}"
            vacuous = f"{text}: nothing was compared"
    if any(never_binds(name, arm) for arm in arms):
        vacuous = "the cap is not below the largest advantage that a group can have"
    judged = evaluate(criterion, estimate, vacuous)
    missing = sum(run.makes(criterion.sides[0]) and not run.complete for run in runs)
    if name == STEPS and judged.says is Answer.FAIL and missing:  # the count may still rise
        text = f"{missing} of its runs are not complete; {judged.text}"
        return replace(judged, says=Answer.INCONCLUSIVE, text=text)
    return judged
