"""Preview of a run for `--dry-run`: its work, and its hours by measured steps. Loads no weights."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from extraction.adapters.targets import adapted_share, find_targets
from extraction.selection import selected_pairs
from extraction.words import Adapted
from probe.records.timings import mean_times
from probe.runs.alike import runs_alike
from probe.runs.heldout import evaluated_settings
from probe.runs.replay_inputs import ReplayInputs
from probe.runs.resume import find_run, is_complete
from probe.runs.training_inputs import TrainingInputs
from probe.settings.run import ReplayConfig, StepConfig, TrainConfig
from probe.settings.training import ModelConfig
from replay_pools.policy.load import load_skeleton


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Preview of a run. Field names are keys of the JSON."""

    path: str
    state: str  # new, continues after N steps, complete
    work: Mapping[str, int]  # steps, rollouts, tokens, ...
    hours: float | None  # for the remaining steps and a start; None: no similar run has timed a step
    hours_source: str
    model: str
    adapted: Adapted


def adapted_weights(config: ModelConfig, model: str) -> Adapted:
    """Return the adapted part of a model, from its shapes alone.

    Raises:
        InputError: no such model, or no matching target.
    """
    skeleton = load_skeleton(model).to(getattr(torch, config.dtype))
    return adapted_share(skeleton, find_targets(skeleton, config.targets))


def num_evaluations(config: TrainConfig) -> int:
    """Count the evaluations: one before every `every` steps and one after the last step."""
    return len({*range(0, config.steps, config.evaluation.every), config.steps})


def num_evaluated(config: TrainConfig) -> int:
    """Count the rollouts in an evaluation."""
    evaluation = config.evaluation
    return evaluation.num_problems * evaluation.rollouts_per_problem * len(evaluated_settings(config))


def preview_replay(
    config: ReplayConfig, directory: Path, *, out_dir: Path, say: Callable[[str], None] = lambda text: None
) -> Preview:
    """Preview `replay` with the same arguments.

    Raises:
        InputError: as `replay` before it loads the policy.
    """
    inputs = ReplayInputs(config, out_dir, say, "cpu")
    config, source = inputs.config, inputs.groups()
    groups = [group for step in range(source.num_steps) for group in source.groups(step)]
    work = {
        "steps": source.num_steps,
        "rollouts": source.num_steps * inputs.source.per_pool * len(inputs.pools),
        "prompt tokens": sum(len(ids) for group in groups for ids in group.prompt_ids),
        "completion tokens": sum(len(ids) for group in groups for ids in group.completion_ids),
        "cells (arms x conditions)": len(config.intervention.arms) * len(config.objectives()),
    }
    return _preview(config, directory, inputs.record_without_weights(), work, inputs.model_name, out_dir)


def preview_training(config: TrainConfig, directory: Path, *, out_dir: Path) -> Preview:
    """Preview `train` with the same arguments, in one process.

    Raises:
        InputError: as `train` before it loads the policy.
    """
    inputs = TrainingInputs(config, out_dir, directory)
    config, rollouts = inputs.config, inputs.config.rollouts
    sampled = inputs.problems.num_batches * rollouts.prompts_per_step * rollouts.group
    evaluated, times = num_evaluated(config), num_evaluations(config)
    work = {
        "steps": config.steps,
        "rollouts in training": sampled,
        "evaluations": times,
        "rollouts in an evaluation": evaluated,
        "completion tokens at most": (sampled + times * evaluated) * rollouts.sampler.max_new_tokens,
    }
    return _preview(config, directory, inputs.record(), work, str(config.model.name), out_dir)


def _preview(
    config: StepConfig,
    directory: Path,
    record: Mapping[str, Any],
    work: Mapping[str, int],
    model: str,
    out_dir: Path,
) -> Preview:
    """Preview the run with `record`, a part of its future `config.json`."""
    done = find_run(directory, record, whole=False)
    num_done = len({row.step for row in done or ()})
    state = "new" if done is None else f"continues after {num_done} steps"
    timed = [directory] if num_done else runs_alike(asdict(config), out_dir)
    times = mean_times(timed)
    hours, source = None, "no run with steps as large has timed them: a run of 2 steps (--steps 2) is enough"
    if times is not None:
        hours = (times.start + (work["steps"] - num_done) * times.step) / 3600
        where = ", ".join(path.name for path in timed)
        source = f"measured in {where}: {times.step:.3g} s a step, {times.start:.3g} s before the first"
    if done is not None and is_complete(directory):
        state, hours, source = "complete, nothing to do", 0.0, "nothing is left"
    adapted = adapted_weights(config.model, model)
    if not config.intervention.v_hack:
        selected_pairs(config.intervention.extraction)  # refuses faulty pairs
    return Preview(
        path=str(directory),
        state=state,
        work=work,
        hours=hours,
        hours_source=source,
        model=model,
        adapted=adapted,
    )
