"""A run before it runs, for `probe spec plan` and `--dry-run`: its work, hours, memory. No weights are loaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extraction.words import Basis
from probe.records.timings import mean_times
from probe.runs.footprint import Footprint, model_skeleton, pair_rows, pairs_of, run_footprint, sampled_rows
from probe.runs.heldout import evaluated_settings
from probe.runs.hours import Flops, Rows, replay_hours, training_hours
from probe.runs.replay_inputs import ReplayInputs
from probe.runs.resume import find_run, is_complete
from probe.runs.training_inputs import TrainingInputs
from probe.settings.arms import get_arm
from probe.settings.machines import Machine
from probe.settings.run import ReplayConfig, StepConfig, TrainConfig
from probe.step.groups import ReplaySource


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A run that has not been started, or not been finished."""

    path: str
    state: str  # new, continues after N steps, complete
    work: Mapping[str, int]  # steps, rollouts, tokens, ...
    hours: Mapping[str, float]  # by what they go to
    hours_source: str
    footprint: Footprint

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and texts; the footprint's fields beside the others."""
        hours = {"hours": self.hours, "hours_source": self.hours_source}
        return {"path": self.path, "state": self.state, "work": self.work, **hours, **self.footprint.to_json()}


def step_rows(source: ReplaySource) -> list[Rows]:
    """The rollouts of every step."""
    steps = []
    for groups in map(source.groups, range(source.num_steps)):
        prompts = [len(ids) for group in groups for ids in group.prompt_ids]
        steps.append(Rows.of(prompts, [len(ids) for group in groups for ids in group.completion_ids]))
    return steps


def run_hours(config: StepConfig, model: str, machine: Machine, steps: Sequence[Rows] = ()) -> dict[str, float]:
    """{what: hours} of a replay of the rollouts of these steps, or of a training, at most.

    Raises:
        InputError: no such model or pairs, or problems that are not at hand.
    """
    bases: set[Basis] = {get_arm(name).basis for name in config.intervention.arms}
    cost = Flops(model_skeleton(model, config.model.dtype), config.model, bases)
    pairs = [pair_rows(model, config.model.template, source) for source in pairs_of(config)]
    if not isinstance(config, TrainConfig):
        return replay_hours(cost, machine, steps=steps, pairs=pairs)
    return training_hours(
        cost,
        machine,
        steps=config.steps,
        step=sampled_rows(config, model, config.rollouts.prompts_per_step * config.rollouts.group),
        pairs=pairs,
        references=int(bool(config.objective.beta)),
        evaluated=sampled_rows(config, model, num_evaluations(config) * num_evaluated(config)),
    )


def num_evaluations(config: TrainConfig) -> int:
    """One before every so many steps and one after the last, which are one where they fall together."""
    return len({*range(0, config.steps, config.evaluation.every), config.steps})


def num_evaluated(config: TrainConfig) -> int:
    """Rollouts in an evaluation."""
    evaluation = config.evaluation
    return evaluation.num_problems * evaluation.rollouts_per_problem * len(evaluated_settings(config))


def preview_replay(
    config: ReplayConfig,
    directory: Path,
    *,
    out_dir: Path,
    machine: Machine,
    say: Callable[[str], None] = lambda text: None,
) -> Preview:
    """What `replay` with the same arguments would do, on a machine.

    Raises:
        InputError: what `replay` refuses before it loads the policy.
    """
    inputs = ReplayInputs(config, out_dir, say, "cpu")
    config, source = inputs.config, inputs.groups()
    steps = step_rows(source)
    num_samples = inputs.source.per_pool * len(inputs.pools)
    work = {
        "steps": source.num_steps,
        "rollouts": source.num_steps * num_samples,
        "prompt tokens": round(sum(rows.number * rows.prompt for rows in steps)),
        "completion tokens": round(sum(rows.number * rows.completion for rows in steps)),
        "cells (arms x conditions)": len(config.intervention.arms) * len(config.objectives()),
    }
    largest = max(rows.tokens for rows in steps)
    footprint = run_footprint(config, inputs.model_name, num_samples=num_samples, step_tokens=largest)
    hours = run_hours(config, inputs.model_name, machine, steps)
    return _preview(directory, inputs.record_without_weights(), work, (hours, machine.source), footprint)


def preview_training(config: TrainConfig, directory: Path, *, out_dir: Path, machine: Machine) -> Preview:
    """What `train` with the same arguments would sample and need, in one process, on a machine.

    Raises:
        InputError: what `train` refuses before it loads the policy.
    """
    inputs = TrainingInputs(config, out_dir, directory)
    config, rollouts = inputs.config, inputs.config.rollouts
    num_samples = rollouts.prompts_per_step * rollouts.group
    sampled = inputs.problems.num_batches * num_samples
    evaluated, times = num_evaluated(config), num_evaluations(config)
    work = {
        "steps": config.steps,
        "rollouts in training": sampled,
        "evaluations": times,
        "rollouts in an evaluation": evaluated,
        "completion tokens at most": (sampled + times * evaluated) * rollouts.sampler.max_new_tokens,
    }
    model = str(config.model.name)
    footprint = run_footprint(config, model, num_samples=num_samples)
    hours = run_hours(config, model, machine)
    return _preview(directory, inputs.record(), work, (hours, machine.source), footprint)


def _preview(
    directory: Path,
    record: Mapping[str, Any],
    work: Mapping[str, int],
    counted: tuple[Mapping[str, float], str],
    footprint: Footprint,
) -> Preview:
    """The preview of the run of `record`, some keys of what its `config.json` will hold; `counted` hours, and how."""
    done = find_run(directory, record, whole=False)
    num_done = len({row.step for row in done or ()})
    state = "new" if done is None else f"continues after {num_done} steps"
    (hours, source), left = counted, work["steps"] - num_done
    times = None if done is None else mean_times([directory])
    if times is not None:
        hours, source = {"start": times.start / 3600, "steps": left * times.step / 3600}, "measured in its steps"
    if done is not None and is_complete(directory):
        state, hours = "complete, nothing to do", {}
    return Preview(path=str(directory), state=state, work=work, hours=hours, hours_source=source, footprint=footprint)
