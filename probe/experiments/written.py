"""The verdict of a spec as text, for the terminal and for the Results of `spec/NAME.md` (`analyze SPEC --write`)."""

import re
from collections.abc import Mapping
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
    lines = [f"{verdict.spec}: {complete} of {len(verdict.runs)} runs, spec sha256 {verdict.sha256[:SHA_DIGITS]}"]
    lines += wrap(verdict.question)
    if verdict.arms:
        lines += ["", *arm_lines(verdict.arms)]
    # More runs may change the decision of an unfinished sweep, or of one that ended at its ceiling.
    head = "DECISION" if complete == len(verdict.runs) else f"DECISION OF {complete} RUNS"
    decision = verdict.verdict
    lines += ["", *wrap(f"{head}: {decision.word}. {decision.sentence}", indent="  "), *note_lines(decision)]
    if verdict.replay is not None:
        lines += ["", *verdict_lines(f"VERDICT of {_place(verdict)}", verdict.replay, brief=True)]
        lines += note_lines(verdict.replay)
    lines += ["", "Criteria (mechanism rows are identities of the code and no evidence)"]
    for finding in decision.findings:
        lines += finding_lines(finding)
    if verdict.outcomes:
        lines += ["", *wrap(f"Runs that trained, {_TRAINED}")]
    for arm, numbers in verdict.outcomes.items():
        lines.append(f"  {arm}")
        for name, values in numbers.items():
            lines += wrap(f"      {name:<22}{_numbers(values)}", indent=" " * 28)
    return "\n".join(lines)


def _place(verdict: SpecVerdict) -> str:
    about = {} if verdict.replay is None else verdict.replay.about
    return f"{about.get('run')}, condition {about.get('condition')}"


def _numbers(values: Mapping[str, float]) -> str:
    """Format the mean, followed by every seed's number in brackets."""
    by_seed = ", ".join(f"{seed}: {value:.3g}" for seed, value in values.items())
    return f"{fmean(values.values()):.3g} ({by_seed})"


def _entry(verdict: SpecVerdict) -> str:
    """Return the entry of the Results: a heading that `register.HEADING` reads, and the text."""
    done = sum(run.complete for run in verdict.runs)
    version = f"(spec {verdict.sha256[:SHA_DIGITS]}, {done} of {len(verdict.runs)} runs)"
    return f"### {verdict.verdict.word} {version}\n\n```text\n{format_text(verdict)}\n```\n"


def write_results(verdict: SpecVerdict, spec_file: Path) -> Path:
    """Add or replace this version's entry in the Results of `spec/NAME.md`; return the file.

    Raises:
        InputError: the log has results of more runs of this version.
    """
    log, done = spec_file.with_suffix(".md"), sum(run.complete for run in verdict.runs)
    for result in written_decisions(log):
        if verdict.sha256.startswith(result.sha256) and result.done > done:
            raise InputError(
                log,
                expected=f"results of {done} runs or fewer of this version, which these would replace",
                found=f"results of {result.done}",
                fix="pass the --out that has all runs, or delete that entry",
            )
    text = log.read_text(encoding="utf-8") if log.is_file() else f"# {verdict.spec}\n\n{verdict.question}\n"
    section = _RESULTS.search(text)
    if section is None:
        text = f"{text.rstrip()}\n\n## Results\n"
        section = _RESULTS.search(text)
        assert section is not None
    kept = [old for old in re.split(r"(?=^### )", section[1], flags=re.M) if old.startswith("### ")]
    mark = f"(spec {verdict.sha256[:SHA_DIGITS]},"
    entries = [old.rstrip() + "\n" for old in kept if mark not in old.splitlines()[0]]
    entries.append(_entry(verdict))
    results = "## Results\n\n" + "\n".join(entries) + ("\n" if text[section.end() :] else "")
    write_atomic(log, (text[: section.start()] + results + text[section.end() :]).encode())
    return log
