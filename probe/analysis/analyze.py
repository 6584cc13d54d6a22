"""analyze: the records and inner products of one run to one Analysis, from which text, JSON and report are made.

    analysis = analyze("demo")
    analysis.verdict.word             BROKEN, SKIP, CONFOUNDED, GENERIC, UNDERPOWERED, LIKELY, GO or TRAINED
    analysis.to_json()                what `probe analyze --json` prints

To add a result: a measure in `probe.analysis.evidence`, its name in JSON_KEYS, a table in `probe.analysis.text_report`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from extraction.words import Basis
from probe.analysis.evidence import Evidence, conditions
from probe.analysis.metrics import Estimate, MetricKey, metrics
from probe.analysis.statistics.permutation import NUM_DRAWS
from probe.analysis.verdict.decision import decide, questions, unread
from probe.analysis.verdict.next_step import next_step
from probe.analysis.verdict.validity import validity
from probe.analysis.verdict.verdict import Finding, Verdict
from probe.records.run import Run, read_run
from probe.settings.arms import ARMS
from probe.settings.words import Word
from replay_pools.base.errors import InputError

__all__ = ["Analysis", "analyze", "conditions"]
AGAINST_GO = (Word.BROKEN, Word.SKIP, Word.CONFOUNDED, Word.GENERIC)  # shown not to be worth a training as it is
JSON_KEYS = (
    *("run", "condition", "arms", "measured_arm", "num_steps", "num_samples", "num_prompts", "loss_types"),
    *("verdict", "shares", "ceilings", "forecast", "validity", "checks", "permutation", "transfer"),
    *(
        "adapted",
        "cells",
        "summaries",
        "buckets",
        "contrasts",
        "specificity",
        "outcome",
        "own",
        "lookahead",
    ),
)


class Analysis(Evidence):
    """Everything that the records and the inner products of one run say under one condition: evidence and verdict."""

    def __repr__(self) -> str:
        """One line; `print(analysis.verdict)` gives the screen of `probe analyze`."""
        return f"Analysis({self.run}: {self.verdict.word})"

    @cached_property
    def questions(self) -> list[Finding]:
        """What the verdict rests on."""
        return questions(self)

    @cached_property
    def validity(self) -> list[Finding]:
        """Whether there is a measurement that can be believed, part by part."""
        return validity(self)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict of the measured arm's basis."""
        verdict = decide(self, self.questions, self.validity)
        return replace(verdict, next=next_step(verdict.word, self, self.questions, self.validity))

    @cached_property
    def checks(self) -> list[Finding]:
        """The seed's tables V and D."""
        from probe.analysis.verdict.seed_tables import seed_tables  # the verdict reads none of these

        return seed_tables(self)

    @cached_property
    def metrics(self) -> dict[MetricKey, Estimate]:
        """What preregistered criteria are evaluated from."""
        return metrics(self)

    @cached_property
    def bases(self) -> "list[Analysis]":
        """The run in every basis with an arm along v_hack, the measured arm's first; empty without such an arm."""
        if self.measured_arm is None:
            return []
        analyses: list[Analysis] = [self]
        for basis in bases_of(self.arms):
            if basis != self.basis:
                numbers = {"num_draws": self.num_draws, "seed": self.seed}
                other = Analysis(self.given, self.condition, basis=basis, others=self.others, **numbers)
                analyses.append(other)
        return analyses

    @property
    def agreement(self) -> str:
        """One sentence: whether the bases end in one verdict; '' for less than two."""
        if len(self.bases) < 2:
            return ""
        more = "; analyze --basis prints each by itself"
        words = {analysis.basis: analysis.verdict.word for analysis in self.bases}
        causes = {analysis.basis: unread(analysis) for analysis in self.bases}
        closed = [f"in {basis} nothing can be read ({cause[1]})" for basis, cause in causes.items() if cause]
        if closed:
            return f"The bases are not compared: {'; '.join(closed)}{more}"
        if len({*words.values()}) == 1:
            return f"The bases agree: {self.verdict.word} in {' and '.join(words)}{more}"
        return f"The bases do not agree: {', '.join(f'{word} in {basis}' for basis, word in words.items())}{more}"

    @property
    def failed(self) -> bool:
        """Whether the verdict stands against a GO; UNDERPOWERED and LIKELY leave it open."""
        return self.verdict.word in AGAINST_GO

    def settle(self) -> "Analysis":
        """Compute what a sweep is judged by, and let go of the inner products; they are read again when asked for."""
        _ = self.verdict, self.metrics
        self.__dict__.pop("linked", None)
        return self

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None."""
        plain: dict[str, Any] = {name: _plain(getattr(self, name)) for name in JSON_KEYS}
        plain["bases"] = []
        for analysis in self.bases:
            price = None if analysis.forecast is None else analysis.forecast.row("honest")
            removed = None if price is None else _plain(price.removed)
            row = {"basis": analysis.basis, "arm": analysis.measured_arm, "honest_removed": removed}
            plain["bases"].append({**row, "verdict": _plain(analysis.verdict)})
        plain["metrics"] = []
        for key, estimated in self.metrics.items():
            # Keys without an arm repeat those of the measured arm.
            if key.arm is not None or self.measured_arm is None:
                plain["metrics"].append({**key._asdict(), **asdict(estimated)})
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def analyze(
    run: Run | str | Path,
    condition: str | None = None,
    *,
    basis: Basis | None = None,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    others: Sequence[Run] = (),
) -> Analysis:
    """Judge one run under one condition: what `probe analyze` prints.

    >>> print(probe.analyze("demo").verdict.word)
    UNDERPOWERED

    Args:
        run: as `probe.replay` and `probe.read_run` give it; or its path, or its name in out/runs.
        condition: None = the primary.
        basis: whose arms alone are looked at; None: all arms, and the verdict is that of the measured arm's basis.
        num_draws: of each permutation null.
        seed: of the draws, the sampled sign flips and the bootstraps.
        others: runs beside this one; of those that train, other arms of the same settings and seed must start alike.

    Raises:
        InputError: no arm measures along v_hack in the basis; a file of inner products is missing or changed.
    """
    run = run if isinstance(run, Run) else read_run(run)
    arms = list(dict.fromkeys(step.arm for step in run.steps))
    if basis is not None and basis not in bases_of(arms):
        fix = "replay the same pools with such an arm: projected for svd, projected-lora for lora"
        raise InputError(run.path, expected=f"an arm along v_hack in the basis {basis}", found=", ".join(arms), fix=fix)
    analysis = Analysis(run, condition, basis=basis, num_draws=num_draws, seed=seed, others=others)
    _ = analysis.verdict  # what is wrong with the files of the run is said here
    return analysis


def bases_of(arms: Iterable[str]) -> list[Basis]:
    """The bases in which an arm measures along v_hack, in the order of the arms."""
    return list(dict.fromkeys(ARMS[arm].basis for arm in arms if arm in ARMS and ARMS[arm].directions == "v_hack"))
