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
from probe.analysis.formatting import wrap
from probe.analysis.horizon import cautions_of
from probe.analysis.measures import STEPS, are_identical, never_binds, of_replay, of_training
from probe.analysis.verdict.outcome import judge_arms
from probe.analysis.verdict.trained_arms import TrainedArm, Trainings, of_runs, same_records
from probe.analysis.verdict.verdict import Finding, Verdict, arm_lines, finding_lines, note_lines, verdict_lines
from probe.experiments.cautions import cautions
from probe.experiments.criteria import evaluate
from probe.experiments.jobs import Job, run_jobs
from probe.experiments.spec import OUTCOME, VERDICT, Cell, Criterion, Spec
from probe.records.run import out_of, read_run
from probe.settings.words import Answer
from replay_pools.base.errors import InputError

SHA_DIGITS = 12  # shown of a spec's hash


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecVerdict:
    """The verdict of an experiment."""

    spec: Spec
    runs: list[Job]
    analyses: Mapping[tuple[str, str], Analysis]  # {(complete run, condition): analysis}
    verdict: Verdict  # the decision; findings are the criteria, caveats say why no earlier decision was taken
    replay: Verdict | None  # on the run under the primary's condition; None: its runs train, or none is complete
    arms: list[Verdict]  # every trained arm and condition against vanilla; empty for a replay
    trained: list[TrainedArm]  # the arms that `arms` judges, with the baseline first

    def __str__(self) -> str:
        """Return the screen: training outcomes, decision, replay verdict, cautions and criteria, in 100 columns."""
        spec, decision, done = self.spec, self.verdict, sum(run.complete for run in self.runs)
        lines = [f"{spec.name}: {done} of {len(self.runs)} runs, spec sha256 {spec.sha256[:SHA_DIGITS]}"]
        lines += wrap(spec.experiment.question)
        if self.arms:
            lines += ["", *arm_lines(self.arms)]
        # More runs may change the decision of an unfinished sweep, or of one that ended at its ceiling.
        head = "DECISION" if done == len(self.runs) else f"DECISION OF {done} RUNS"
        lines += ["", *wrap(f"{head}: {decision.word}. {decision.sentence}", indent="  "), *note_lines(decision)]
        if self.replay is not None:
            place = f"{self.replay.about['run']}, condition {self.replay.about['condition']}"
            lines += ["", *verdict_lines(f"VERDICT of {place}", self.replay, brief=True), *note_lines(self.replay)]
        lines += ["", "Criteria (mechanism rows are identities of the code and no evidence)"]
        return "\n".join([*lines, *(line for finding in decision.findings for line in finding_lines(finding))])

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and None; a run has its progress and the version of its spec."""
        return {
            "spec": self.spec.name,
            "sha256": self.spec.sha256,
            "question": self.spec.experiment.question,
            "runs": [{"name": run.name, "complete": run.complete, "made_under": run.made_under} for run in self.runs],
            "verdict": asdict(self.verdict),
            "replay": None if self.replay is None else asdict(self.replay),
            "arms": [asdict(arm) for arm in self.arms],
        }


def evaluate_spec(spec: Spec, out_dir: Path) -> SpecVerdict:
    """Analyse every complete run of a sweep under each of its conditions, judge every criterion, and decide.

    Raises:
        InputError: no run of the sweep is complete.
    """
    runs = run_jobs(spec, out_dir)
    done = [run for run in runs if run.complete]
    if not done:
        fix = f"run: probe spec sweep {shlex.quote(str(spec.path))}"
        raise InputError(out_dir, expected=f"finished runs of {spec.name}", found="none", fix=fix)
    read, analyses = {run.name: read_run(run.directory) for run in done}, {}
    for run, name in ((one.name, name) for one in done for name in one.conditions):
        condition = None if spec.trains else name  # a training run has one, and its records lack the spec's name for it
        analyses[run, name] = analyze(read[run], condition, others=[*read.values()]).settle()
    cells = {}
    for condition, arm in spec.cells:
        of_cell = [analyses[run.name, condition] for run in done if run.makes((condition, arm))]
        cells[condition, arm] = TrainedArm(condition=condition, arm=arm, runs=of_cell)
        if spec.trains:  # the evaluated runs, once a seed
            shown = condition if len(spec.conditions) > 1 else ""
            cells[condition, arm] = of_runs(shown, arm, of_cell, spec.condition(condition).config.remedy)
    trained = [cells[cell] for cell in sorted(cells, key=lambda cell: cell != spec.baseline)] if spec.trains else []
    trainings = None
    if trained and spec.baseline is not None:
        trainings = Trainings(baseline=trained[0], treated=trained[1:], out=out_of(done[0].directory))
    findings = [_criterion(criterion, spec, runs, cells, trainings) for criterion in spec.criteria]
    condition, _ = judged = spec.primary.sides[0]
    replays = [] if spec.trains else [one.verdict for (_, name), one in analyses.items() if name == condition]
    arms = [] if trainings is None else judge_arms(trainings)
    words: dict[str, str] = {finding.name: finding.says for finding in findings}
    words[VERDICT] = replays[0].word if replays else "no run"
    for arm in arms:
        if (arm.about["condition"] or condition, arm.about["arm"]) == judged:
            words[OUTCOME] = arm.word
    decision = spec.decide(words)
    earlier = spec.decisions[: spec.decisions.index(decision)]
    broken: dict[str, dict[str, None]] = {}  # {part of the measurement: runs}
    for (run, _), analysis in analyses.items():
        for part in analysis.validity:
            if part.says is Answer.BROKEN:
                broken.setdefault(f"{part.name} ({part.text})", {})[run] = None
    caveats = [
        *(f"not {other.name}: {', '.join(other.unmet(words))}" for other in earlier),
        *cautions_of(trained, None if trainings is None else trained[0]),
        *cautions(spec, runs),
        *(f"BROKEN: {part}, in {', '.join(names)}" for part, names in broken.items()),
    ]
    about, (word, sentence) = {"spec": spec.name}, (decision.name, decision.then)
    return SpecVerdict(
        spec=spec,
        runs=runs,
        analyses=analyses,
        verdict=Verdict(about=about, word=word, sentence=sentence, findings=findings, caveats=caveats),
        replay=replays[0] if replays else None,
        arms=arms,
        trained=trained,
    )


def _criterion(
    criterion: Criterion, spec: Spec, runs: Sequence[Job], cells: Mapping[Cell, TrainedArm], trainings: Trainings | None
) -> Finding:
    """Measure and judge one criterion."""
    name, arms, vacuous = criterion.estimate, [cells[cell] for cell in criterion.sides], ""
    if spec.trains:
        estimate, seeds = of_training(name, trainings, *arms), same_records(*arms) if len(arms) > 1 else []
        alike = f"have the same records in seeds {', '.join(map(str, seeds))}" if seeds else ""
    else:
        estimate = of_replay(name, *arms)
        alike = "are identical in every prompt" if are_identical(name, *arms) else ""
    if alike and criterion.role != "mechanism":
        vacuous = f"both sides {alike}: nothing was compared"
    if any(never_binds(name, arm) for arm in arms):
        vacuous = "the cap is not below the largest advantage that a group can have"
    judged = evaluate(criterion, estimate, vacuous)
    missing = sum(run.makes(criterion.sides[0]) and not run.complete for run in runs)
    if name == STEPS and judged.says is Answer.FAIL and missing:  # the count may still rise
        text = f"{missing} of its runs are not complete; {judged.text}"
        return replace(judged, says=Answer.INCONCLUSIVE, text=text)
    return judged
