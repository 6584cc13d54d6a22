"""Results on a replay, a trained arm or a spec: findings, the verdict that follows, and the next step.

`verdict_lines`, `note_lines` and `arm_lines` format them as text, `asdict` as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.analysis.estimate import Estimate
from probe.analysis.formatting import TextTable, picture, render_table, shown, wrap
from probe.analysis.statistics.thresholds import ALPHA, MATERIAL_RATE
from probe.settings.words import Answer, Word

MOST = 4  # arms whose questions are all printed
MOST_CAVEATS = 3  # on a screen; JSON, and `probe analyze --full`, have all
LEGEND = "Brackets: 95% intervals. Pictures, -0.5 to 1.5: o the estimate, | the threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question of a verdict, part of the measurement, row of the seed or criterion of a spec."""

    name: str
    question: str  # the question in words
    says: Answer
    text: str  # the answer from the data, with the numbers
    number: Estimate | None = None  # the basis of `says`; None without a number with an interval
    counts_from: float | None = None  # threshold at which `number` becomes material, marked in its picture
    n: int = 0
    unit: str = ""  # unit counted by n
    role: str = ""  # of a criterion; for a row of the seed `evidence` or `mechanism` (an identity of the code)
    needed: int | None = None  # number of `unit` that would decide an unclear answer; None if unknown
    rival: str = ""  # the arm that it was compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The next step: a sentence with its commands, one per line; no command if none can be computed."""

    text: str = ""
    command: str = ""

    @property
    def in_line(self) -> str:
        """The commands, or else the sentence."""
        return "; then: ".join(self.command.splitlines()) or self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One word with its reason, the findings behind it, caveats, and the next step."""

    about: Mapping[str, Any]  # the object judged: run and condition of a replay; arm, condition, seeds, ... of an arm
    word: str  # a `Word` or an `Outcome`; for a spec the name of its decision
    sentence: str  # the reason; for a spec the consequence of the decision
    plain: str = ""  # for a replay: the meaning of the word for a decision about training
    findings: Sequence[Finding]
    caveats: Sequence[str] = ()
    next: Next = field(default_factory=Next)

    def __str__(self) -> str:
        """Return the screen: findings, caveats and the next step."""
        return "\n".join([*verdict_lines("VERDICT", self), "", *note_lines(self)])

    @property
    def asked(self) -> Sequence[Finding]:
        """The questions to show.

        None for a broken replay, a replay that trained, or an arm that needs no pairs: a sentence explains the verdict.
        """
        is_asked = self.word not in (Word.BROKEN, Word.TRAINED) and self.about.get("needs_pairs", True)
        return self.findings if is_asked else ()

    def finding(self, name: str) -> Finding:
        """Return the finding with this name."""
        return next(finding for finding in self.findings if finding.name == name)


def finding_lines(finding: Finding) -> list[str]:
    """Format the question, the answer, the picture of the interval, and the numbers."""
    text = f"n = {finding.n} {finding.unit}s: {finding.text}" if finding.role else finding.text
    if finding.role:
        lines = wrap(f"  {finding.says:<13}{finding.role:<10} {finding.name}: {finding.question}", indent=" " * 26)
    else:
        line = f"  {finding.question:<46}{finding.says:<11}"
        if finding.number is not None and finding.counts_from is not None:
            line += picture(*finding.number.span, ends=(-0.5, 1.5), mark=finding.counts_from)
        lines = [line.rstrip()]
    return [*lines, *wrap(f"      {text}", indent="      ")]


def verdict_lines(head: str, verdict: Verdict, *, brief: bool = False) -> list[str]:
    """Format `HEAD: WORD` with every question, or with the sentence if no question is shown or in brief."""
    lines = wrap(f"{head}: {verdict.word}", indent="  ")
    if verdict.plain:
        lines += wrap(f"  {verdict.plain}", indent="  ")
    if brief or not verdict.asked:
        return [*lines, *wrap(f"  {verdict.sentence}", indent="  ")]
    drawn = [finding.counts_from for finding in verdict.findings if finding.number is not None]
    if thresholds := [f"{each:g}" for each in drawn if each is not None]:
        lines += wrap(f"  {LEGEND} ({', '.join(thresholds)}).", indent="  ")
    for finding in verdict.findings:
        lines += finding_lines(finding)
    return lines


def note_lines(verdict: Verdict, indent: str = "  ", most: int | None = MOST_CAVEATS) -> list[str]:
    """Format the first caveats, and the next step; its commands stay unwrapped so that they can be copied."""
    lines = []
    for caveat in verdict.caveats[:most]:
        lines += wrap(f"- {caveat}", indent="  ")
    if most is not None and len(verdict.caveats) > most:
        lines.append(f"- and {len(verdict.caveats) - most} more, which --full prints")
    if verdict.next.text:
        lines += wrap(f"{indent[2:]}NEXT: {verdict.next.text}", indent=indent)
    return lines + [f"{indent}{command}" for command in verdict.next.command.splitlines()]


def arm_lines(arms: Sequence[Verdict]) -> list[str]:
    """Format trained arms, each with its questions if it needs pairs (else the reason), and the next step.

    More than MOST arms get one line each: such a bench is read as a table, and its numbers are in the page and in JSON.
    """
    lines: list[str] = []
    if len(arms) > MOST:
        rows = []
        for arm in arms:
            rates = " / ".join(shown(arm.about[rate], ".0%") for rate in ("hack", "solve"))
            rows.append((arm.about["name"], _seeds(arm), rates, arm.word, *effect_and_price(arm)))
        title = f"OUTCOME of {len(arms)} arms compared with vanilla (rates at the end; points that rates lose)"
        header = ("arm", "seeds", "hack / solve", "word", "hacking", "solving")
        table = TextTable(name="outcomes", title=title, header=header, rows=rows, left=len(header))
        lines = render_table(table).splitlines()
    else:
        for arm in arms:
            head = f"OUTCOME of {arm.about['name']}, {_seeds(arm)}"
            lines += [*verdict_lines(head, arm), *note_lines(arm, "    ")]
    return [*lines, *wrap(f"- {_small_print(arms)}", indent="  ")] if arms else []


def effect_and_price(arm: Verdict) -> tuple[str, str]:
    """Return the decision on a trained arm: `falls 50 [32, 69]` and `at most 16`, in points."""
    effect, price = arm.finding("effect"), arm.finding("price")
    if effect.number is None or price.number is None:
        return "-", "-"
    low, value, high = (100 * x for x in effect.number.span)
    if effect.says is Answer.RISES:  # a positive number
        value, low, high = -value, -high, -low
    says = f"{effect.says.lower()} {value:.0f} [{low:.0f}, {high:.0f}]"
    most = f"at most {max(0.0, 100 * price.number.high):.0f}"
    if price.says is Answer.LOST:
        return says, f"lost {100 * price.number.span[1]:.0f}, {most}"
    return says, f"kept, {most}" if price.says is Answer.KEPT else most


def _small_print(arms: Sequence[Verdict]) -> str:
    """State the material difference, the confidence of the statements, and their scope."""
    levels = sorted({f"{100 * (1 - arm.about['levels']['effect']):.4g}%" for arm in arms})
    each = " to ".join(dict.fromkeys((levels[0], levels[-1])))
    return (
        f"a difference of hack or solve rates counts from {100 * MATERIAL_RATE:.0f} points on, which is provisional; "
        f"all effects hold together with {100 * (1 - ALPHA):.4g}% (each at {each}), and so do all prices. They are for "
        "other seeds and other problems; a criterion is at 95% by itself"
    )


def _seeds(arm: Verdict) -> str:
    number = len(arm.about["seeds"])
    return f"{number} seed{'s' * (number != 1)}"
