"""The verdict of a spec as text, on the terminal and in the Results of `spec/NAME.md`.

format_text        output of `probe analyze SPEC`
write_results      write the Results (`--write`)
"""

import re
from collections.abc import Sequence
from pathlib import Path

from probe.analysis.formatting import wrap
from probe.analysis.verdict.verdict import arm_lines, arm_sentences, finding_lines, note_lines, sentence, verdict_lines
from probe.experiments.register import written_decisions
from probe.experiments.verdict import SpecVerdict
from replay_pools.base.errors import InputError
from replay_pools.base.files import write_atomic

SHA_DIGITS = 12  # digits of the spec's hash in a heading
_HEADER = ("criterion", "role", "asked", "verdict", "n", "found")  # columns of the table below a heading
_TRAINED = (
    "mean (every seed): held-out rates are of the deployed weights, hack-ward measures along each arm's own directions"
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
    for outcome in verdict.outcomes:
        lines.append(f"  {outcome.condition} {outcome.arm}, seeds {', '.join(outcome.seeds)}")
        for name, values in outcome.values.items():
            lines += wrap(f"      {name:<22}{_numbers(values)}", indent=" " * 28)
    return "\n".join(lines)


def _place(verdict: SpecVerdict) -> str:
    about = {} if verdict.replay is None else verdict.replay.about
    return f"{about.get('run')}, condition {about.get('condition')}"


def format_markdown(verdict: SpecVerdict) -> str:
    """Format the content of `format_text` as tables, for the spec's log."""
    done = sum(run.complete for run in verdict.runs)
    version = f"(spec {verdict.sha256[:SHA_DIGITS]}, {done} of {len(verdict.runs)} runs)"
    lines = [f"### {verdict.verdict.word} {version}", "", verdict.verdict.sentence]
    if verdict.replay is not None:
        lines.append(f"\n**Verdict.** {sentence(_place(verdict), verdict.replay)}")
    lines += [f"\n**Outcome.** {text}" for text in arm_sentences(verdict.arms)]
    lines += [f"\n**Caution.** {caveat}" for caveat in verdict.verdict.caveats]
    lines += ["", _cells(_HEADER), "|" + "---|" * len(_HEADER)]
    for row in verdict.verdict.findings:
        lines.append(_cells((row.name, row.role, row.question, row.says, f"{row.n} {row.unit}s", row.text)))
    if verdict.outcomes:
        names = list(dict.fromkeys(name for outcome in verdict.outcomes for name in outcome.values))
        lines += ["", f"Runs that trained, {_TRAINED}.", ""]
        lines += [_cells(("condition", "arm", *names)), "|---|---" + "|---" * len(names) + "|"]
        for outcome in verdict.outcomes:
            numbers = (_numbers(outcome.values.get(name, [])) for name in names)
            lines.append(_cells((outcome.condition, outcome.arm, *numbers)))
    return "\n".join(lines) + "\n"


def _numbers(values: Sequence[float | None]) -> str:
    """Format the mean, followed by every seed's number in brackets."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{sum(known) / len(known):.3g} ({' '.join('-' if value is None else f'{value:.3g}' for value in values)})"


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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
    entries.append(format_markdown(verdict))
    results = "## Results\n\n" + "\n".join(entries) + ("\n" if text[section.end() :] else "")
    write_atomic(log, (text[: section.start()] + results + text[section.end() :]).encode())
    return log
