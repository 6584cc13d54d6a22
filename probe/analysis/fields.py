"""The numbers of the step records, by the names of the JSON lines: `cos_in`, `kl/mean`, `advantage/abs_max`, ...

A new field of `probe.records.records.StepRecord` appears here, on terminal, page and JSON, and in criteria by itself.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from probe.analysis.cosines import TRAINS
from probe.analysis.estimate import Estimate, mean_of
from probe.analysis.statistics.intervals import prompt_means
from probe.records.records import ADVANTAGE_KEYS, KL_KEYS, RATIO_KEYS, StepRecord, step_numbers

NOT_SHOWN = ("cos_in", "haar_sd", "adv_cap_vacuous")  # in families of their own, or no number


@cache
def field_names() -> tuple[str, ...]:
    """Return the numbers of the step records."""
    grouped = [*(f"kl/{key}" for key in KL_KEYS), *(f"ratio/{key}" for key in RATIO_KEYS)]
    return (*step_numbers(), *ADVANTAGE_KEYS, *grouped)


def number_of(step: StepRecord, name: str) -> float | None:
    """Return a number of a step record; None if the step lacks it."""
    group, slash, key = name.partition("/")
    if slash and group in ("kl", "ratio"):
        value = getattr(step, group).get(key)
    else:
        value = step.advantage.get(name) if name in ADVANTAGE_KEYS else getattr(step, name)
    return None if value is None else float(value)


def by_prompt(steps: Iterable[StepRecord], name: str) -> dict[Hashable, float]:
    """Return {prompt: mean of a number over its steps}."""
    numbers = [(step.problem_id, number_of(step, name)) for step in steps]
    known = [(prompt, value) for prompt, value in numbers if value is not None]
    return prompt_means([value for _, value in known], [prompt for prompt, _ in known])


def fields_of(steps: Sequence[StepRecord], arm: str | None, *, trains: bool) -> list[Estimate]:
    """Return the mean over prompts of each number of an arm's steps; without an interval if the run trains."""
    of_arm, rows = [step for step in steps if step.arm == arm], []
    for name in field_names():
        values = {} if name in NOT_SHOWN else by_prompt(of_arm, name)
        if values:
            row = replace(mean_of(name, values, "prompt", arm=arm), parts={}, null=None, why="")
            rows.append(replace(row, interval=None, why=TRAINS) if trains else row)
    return rows
