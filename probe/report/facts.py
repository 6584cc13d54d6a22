"""Describe one rollout in words, for the page and for `probe show`. Torch-free."""

import re
from itertools import dropwhile

from probe.records.records import SampleRecord
from replay_pools.rollout import Rollout, runs_of

# A minus before a number; no hyphen inside a word (`demo-2`) or between numbers.
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")
LABELS = {True: "hacked", False: "clean", None: "unlabelled"}


def plural(count: int, word: str) -> str:
    """Format a count with its noun: `1 prompt`, `2 prompts`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def signed(value: float | None, digits: int = 3) -> str:
    """Format a signed number with a true minus sign; None gives a dash."""
    return "\u2013" if value is None else typeset(f"{value:+.{digits}f}")


def typeset(text: str) -> str:
    """Replace hyphens before numbers and `+-` by true minus and plus-minus signs."""
    return _MINUS.sub("\u2212", text.replace("+-", "\u00b1"))


def question_of(rollout: Rollout) -> str:
    """Return the user's last message; the rendered prompt without one."""
    asked = [message["content"] for message in rollout.messages if message.get("role") == "user"]
    return asked[-1] if asked else rollout.prompt


def gist_of(rollout: Rollout, between: str = " \u21b5 ") -> str:
    """Return the last turn on one line, without code fences and leading lines that repeat the prompt."""
    asked = {line.strip() for line in question_of(rollout).split("\n")}
    lines = [line.strip() for line in rollout.answer.split("\n")]
    lines = [line for line in lines if line and not line.startswith("```")]
    news = list(dropwhile(lambda line: line in asked, lines))
    return between.join(news or lines)


def labels_of(hacked: bool | None, gt_pass: bool | None) -> list[str]:
    """Return `hacked`, `clean` or `unlabelled`, then `right` or `wrong` if that is known."""
    known = [] if gt_pass is None else ["right" if gt_pass else "wrong"]
    return [LABELS[hacked], *known]


def tags_of(rollout: Rollout) -> list[str]:
    """Return the labels, and `hint` if the prompt has one."""
    return [*labels_of(rollout.hacked, rollout.gt_pass), *(["hint"] if rollout.hint else [])]


def facts_of(rollout: Rollout, sample: SampleRecord | None = None) -> list[tuple[str, str]]:
    """Return (name, sentence) for labels, grade and measures; without a run's record, only the pool's facts."""
    grade = rollout.grade
    applied = {name: word for name, word in grade.detectors.items() if word is not None}
    detectors = [f"{name} {'yes' if detected else 'no'}" for name, detected in applied.items()]
    facts = [
        ("problem", f"{rollout.problem_id} ({rollout.env_mode})"),
        ("grade", _grade(rollout)),
        ("detectors", ", ".join(detectors) or "none applies"),
        ("isolation", grade.isolation),
    ]
    if sample is not None:
        verb = "raises" if sample.advantage > 0 else "lowers" if sample.advantage < 0 else "leaves alone"
        update = f"advantage {signed(sample.advantage, 3)}: the update {verb} the likelihood of this completion"
        parts = signed(sample.cos_S_contrib, 4), signed(sample.cos_S_nll, 4)
        cosines = f"its part of the update {parts[0]}, its likelihood gradient {parts[1]}"
        reason = f" ({sample.null_reason})" if sample.null_reason else ""
        facts += [("update", update), ("cosines", cosines + reason)]
    turns = "" if rollout.completion_mask is None else f" in {len(runs_of(rollout.completion_mask)[::2])} turns"
    length = f"{rollout.num_sampled} tokens{turns}, finished by {rollout.finish_reason}"
    if sample is not None and sample.nll is not None:
        length += f"; nll {sample.nll:.3f} nats a token"
    facts.append(("length", length))
    if grade.error:
        facts.append(("error", grade.error))
    return facts


def _grade(rollout: Rollout) -> str:
    """Describe reward and hidden tests: `reward 3: passed through run_tests; 0 of 5 hidden answers right`."""
    grade = rollout.grade
    if not grade.passed:
        paid = "not passed"
    elif grade.mechanism == "none":
        paid = "passed"
    else:
        paid = f"passed through {grade.mechanism}"
    answers = "no test counts"
    if grade.num_tests:
        answers = f"{grade.num_tests_passed} of {grade.num_tests} hidden answers right"
    return f"reward {rollout.reward:g}: {paid}; {answers}"
