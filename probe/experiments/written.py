"""The verdict of a spec as text, for the terminal and for the Results of `spec/NAME.md` (`analyze SPEC --write`)."""

import re
from pathlib import Path
from statistics import fmean

from probe.analysis.formatting import wrap
from probe.analysis.verdict.verdict import arm_lines, finding_lines, note_lines, verdict_lines
from probe.experiments.register import written_decisions
from probe.experiments.verdict import SpecVerdict
from replay_pools.base.errors import InputError
from replay_pools.base.files import write_atomic

SHA_DIGITS = 12  # digits of the spec's hash in a heading
_TRAINED = (
    "mean (each seed): held-out rates are of the deployed weights, hack-ward measures along each arm's own directions"
)
_RESULTS = re.compile(r"^## Results\n(.*?)(?=^## |\Z)", re.M | re.S)


def format_text(verdict: SpecVerdict) -> str:
    """Format training outcomes, decision, replay verdict, cautions and criteria, in at most 100 columns."""
    complete = sum(run.complete for run in verdict.runs)
    spec = verdict.spec
    lines = [f"{spec.name}: {complete} of {len(verdict.runs)} runs, spec sha256 {spec.sha256[:SHA_DIGITS]}"]
    lines += wrap(spec.experiment.question)
    if verdict.arms:
        lines += ["", *arm_lines(verdict.arms)]
    # More runs may change the decision of an unfinished sweep, or of one that ended at its ceiling.
    head = "DECISION" if complete == len(verdict.runs) else f"DECISION OF {complete} RUNS"
    decision = verdict.verdict
    lines += ["", *wrap(f"{head}: {decision.word}. {decision.sentence}", indent="  "), *note_lines(decision)]
    if verdict.replay is not None:
        place = f"{verdict.replay.about['run']}, condition {verdict.replay.about['condition']}"
        lines += ["", *verdict_lines(f"VERDICT of {place}", verdict.replay, brief=True)]
        lines += note_lines(verdict.replay)
    lines += ["", "Criteria (mechanism rows are identities of the code and no evidence)"]
    for finding in decision.findings:
        lines += finding_lines(finding)
    if verdict.outcomes:
        lines += ["", *wrap(f"Runs that trained, {_TRAINED}")]
    for arm, numbers in verdict.outcomes.items():
        lines.append(f"  {arm}")
        for name, values in numbers.items():
            by_seed = ", ".join(f"{seed}: {value:.3g}" for seed, value in values.items())
            lines += wrap(f"      {name:<22}{fmean(values.values()):.3g} ({by_seed})", indent=" " * 28)
    return "\n".join(lines)


def write_results(verdict: SpecVerdict, spec_file: Path) -> Path:
    """Add or replace this version's entry in the Results of `spec/NAME.md`; return the file.

    Raises:
        InputError: the log has results of more runs of this version.
    """
    spec, log, done = verdict.spec, spec_file.with_suffix(".md"), sum(run.complete for run in verdict.runs)
    for result in written_decisions(log):
        if spec.sha256.startswith(result.sha256) and result.done > done:
            raise InputError(
                log,
                expected=f"results of {done} runs or fewer of this version, which these would replace",
                found=f"results of {result.done}",
                fix="pass the --out that has all runs, or delete that entry",
            )
    text = log.read_text(encoding="utf-8") if log.is_file() else f"# {spec.name}\n\n{spec.experiment.question}\n"
    if _RESULTS.search(text) is None:
        text = f"{text.rstrip()}\n\n## Results\n"
    section = _RESULTS.search(text)
    assert section is not None
    mark = f"(spec {spec.sha256[:SHA_DIGITS]},"
    entries = [entry.rstrip() + "\n" for entry in re.split(r"(?=^### )", section[1], flags=re.M)[1:]]
    entries = [entry for entry in entries if mark not in entry.splitlines()[0]]
    heading = f"### {verdict.verdict.word} {mark} {done} of {len(verdict.runs)} runs)"  # `register.HEADING` reads it
    entries.append(f"{heading}\n\n```text\n{format_text(verdict)}\n```\n")
    results = "## Results\n\n" + "\n".join(entries) + ("\n" if text[section.end() :] else "")
    write_atomic(log, (text[: section.start()] + results + text[section.end() :]).encode())
    return log
