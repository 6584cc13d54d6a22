"""The verdict of a spec as text: for the terminal, and as Markdown for `out/reports/` and the log of the spec."""

import re
from collections.abc import Sequence
from pathlib import Path

from probe.analysis.formatting import wrap
from probe.analysis.trained.text import outcome_lines, outcome_sentences
from probe.experiments.judge.verdict import CriterionVerdict, RunVerdict, SpecVerdict
from probe.experiments.judge.written import CRITERIA_HEADER, REPORTED, SHA_DIGITS, WrittenResult, written_results
from replay_pools.errors import InputError
from replay_pools.storage.files import write_atomic

_TRAINED = (
    "mean (every seed): held-out rates are of the deployed weights, hack-ward measures along each arm's own directions"
)
_RESULTS = re.compile(r"^## Results\n(.*?)(?=^## |\Z)", re.M | re.S)


def format_text(verdict: SpecVerdict) -> str:
    """Outcomes of a training, the decision, the verdict on a replay, cautions and criteria; at most 100 columns."""
    complete = sum(run.complete for run in verdict.runs)
    lines = [f"{verdict.spec}: {complete} of {len(verdict.runs)} runs, spec sha256 {verdict.sha256[:12]}"]
    lines += wrap(verdict.question)
    if verdict.arms:
        lines += ["", *outcome_lines(verdict.arms)]
    # Of a sweep under way, or ended by a stop rule: more runs may change it.
    decision = "DECISION" if complete == len(verdict.runs) else f"DECISION OF {complete} RUNS"
    lines += ["", *wrap(f"{decision}: {verdict.decision}. {verdict.then}", indent="  ")]
    for name, rows in verdict.refused.items():
        lines += wrap(f"  not {name}: {', '.join(rows)}", indent="    ")
    if verdict.replay is not None:
        lines += _replay(verdict.replay)
    for caution in verdict.cautions:
        lines += wrap(f"CAUTION: {caution}", indent="  ")
    lines += ["", "Criteria (mechanism rows are identities of the code and no evidence)"]
    for row in verdict.rows:
        lines += wrap(f"  {row.verdict:<13}{row.role:<10} {row.name}: {row.condition}", indent=" " * 26)
        lines += wrap(
            f"      n = {row.n} {row.unit}s: {row.value + '; ' if row.value else ''}{row.why}", indent=" " * 6
        )
        if row.reported:
            lines += wrap(f"      reported: {row.reported}", indent=" " * 6)
    if verdict.outcomes:
        lines += ["", *wrap(f"Runs that trained, {_TRAINED}")]
    for outcome in verdict.outcomes:
        lines.append(f"  {outcome.condition} {outcome.arm}, seeds {', '.join(outcome.seeds)}")
        for name, values in outcome.values.items():
            lines += wrap(f"      {name:<22}{_numbers(values)}", indent=" " * 28)
    return "\n".join(lines)


def format_markdown(verdict: SpecVerdict) -> str:
    """The same as tables, for `out/reports/` and for the log of the spec."""
    lines = [
        str(_heading(verdict)),
        "",
        verdict.then,
        *(f"\nNot {name}: {', '.join(rows)}." for name, rows in verdict.refused.items()),
        *_replay_markdown(verdict.replay),
        *(f"\n**Outcome.** {sentence}" for sentence in outcome_sentences(verdict.arms)),
        *(f"\n**Caution.** {caution}" for caution in verdict.cautions),
        "",
        *_criteria_markdown(verdict.rows),
    ]
    if verdict.outcomes:
        names = list(dict.fromkeys(name for outcome in verdict.outcomes for name in outcome.values))
        lines += ["", f"Runs that trained, {_TRAINED}.", ""]
        lines += [_cells(("condition", "arm", *names)), "|---|---" + "|---" * len(names) + "|"]
        for outcome in verdict.outcomes:
            numbers = (_numbers(outcome.values.get(name, [])) for name in names)
            lines.append(_cells((outcome.condition, outcome.arm, *numbers)))
    return "\n".join(lines) + "\n"


def write_report(verdict: SpecVerdict, spec_file: Path, out: Path) -> list[Path]:
    """`out/reports/NAME.md`, and the entry of this version of the spec in the Results of `spec/NAME.md`, new or not.

    Raises:
        InputError: the log has results of more runs of this version.
    """
    entry = format_markdown(verdict)
    report, log = out / "reports" / f"{verdict.spec}.md", spec_file.with_suffix(".md")
    heading = _heading(verdict)
    for result in written_results(log):
        if result.sha256 == heading.sha256 and result.done > heading.done:
            raise InputError(
                log,
                expected=f"results of {heading.done} runs or fewer of this version, which these would replace",
                found=f"results of {result.done}",
                fix="pass the --out that has all runs, or delete that entry",
            )
    text = log.read_text(encoding="utf-8") if log.is_file() else f"# {verdict.spec}\n\n{verdict.question}\n"
    section = _RESULTS.search(text)
    if section is None:
        text = f"{text.rstrip()}\n\n## Results\n"
        section = _RESULTS.search(text)
        assert section is not None
    words = [f"\n## {run}\n\n" + "\n".join(f"- {line}" for line in lines) for run, lines in verdict.conclusions.items()]
    body = f"# {verdict.spec}\n\n{verdict.question}\n\n{entry}" + "\n".join(["", *words, ""])
    write_atomic(report, body.encode())
    kept = [old for old in re.split(r"(?=^### )", section[1], flags=re.M) if old.startswith("### ")]
    mark = f"(spec {heading.sha256},"
    entries = [old.rstrip() + "\n" for old in kept if mark not in old.splitlines()[0]] + [entry]
    results = "## Results\n\n" + "\n".join(entries) + ("\n" if text[section.end() :] else "")
    write_atomic(log, (text[: section.start()] + results + text[section.end() :]).encode())
    return [report, log]


def _heading(verdict: SpecVerdict) -> WrittenResult:
    done = sum(run.complete for run in verdict.runs)
    sha256 = verdict.sha256[:SHA_DIGITS]
    return WrittenResult(decision=verdict.decision, sha256=sha256, done=done, runs=len(verdict.runs))


def _replay(replay: RunVerdict) -> list[str]:
    """The verdict on the run under the primary's condition, and what to do next."""
    lines = ["", *wrap(f"VERDICT of {replay.run}, condition {replay.condition}: {replay.verdict}", indent="  ")]
    lines += [*wrap(f"  {replay.why}", indent="  "), *wrap(f"  NEXT: {replay.next.text}", indent="    ")]
    return [*lines, *(f"    {command}" for command in replay.next.command.splitlines())]


def _replay_markdown(replay: RunVerdict | None) -> list[str]:
    if replay is None:
        return []
    place = f"`{replay.run}`, condition {replay.condition}"
    return ["", f"**Verdict: {replay.verdict}** ({place}). {replay.why}. Next: {replay.next.text}."]


def _criteria_markdown(rows: Sequence[CriterionVerdict]) -> list[str]:
    """The table of criteria; what was reported elsewhere is a column where any criterion has it."""
    others = any(row.reported for row in rows)
    header = [*CRITERIA_HEADER, REPORTED] if others else [*CRITERIA_HEADER]
    lines = [_cells(header), "|" + "---|" * len(header)]
    for row in rows:
        cells = [row.name, row.role, row.condition, row.verdict, f"{row.n} {row.unit}s", f"{row.value}; {row.why}"]
        lines.append(_cells([*cells, row.reported] if others else cells))
    return lines


def _numbers(values: Sequence[float | None]) -> str:
    """The mean, and in brackets every seed's number."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{sum(known) / len(known):.3g} ({' '.join('-' if value is None else f'{value:.3g}' for value in values)})"


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.removeprefix("; ").replace("|", "\\|") for cell in cells) + " |"
