"""A run before it runs, for `--dry-run`: its work, and its hours and memory by steps that were measured.

A preview is the object that `--json` prints: path, state (new, continues after N steps, complete), work {unit: number},
hours of the steps that are left with a start, peak_gib of memory (on the GPU where one was used), measured (where the
two come from, which are null where no run like it has timed a step), model and adapted. No weights are loaded.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from extraction.adapters.targets import adapted_share, find_targets
from extraction.pairs import selected_pairs
from extraction.words import Adapted
from probe.records.run import MANIFEST_FILE
from probe.records.timings import GIB, mean_times, runs_alike
from probe.runs.heldout import eval_settings
from probe.runs.inputs import Inputs
from probe.runs.replay_inputs import ReplayInputs
from probe.runs.resume import find_run
from probe.runs.training_inputs import TrainingInputs
from probe.settings.run import ReplayConfig, TrainConfig
from probe.settings.training import ModelConfig
from replay_pools.policy.load import load_skeleton

Preview = dict[str, Any]


def adapted_weights(model: ModelConfig) -> Adapted:
    """Return the adapted part of a model, from its shapes alone.

    Raises:
        InputError: no such model, or no matching target.
    """
    skeleton = load_skeleton(str(model.name)).to(getattr(torch, model.dtype))
    return adapted_share(skeleton, find_targets(skeleton, model.targets))


def preview_replay(config: ReplayConfig, directory: Path, *, out_dir: Path, say: Callable[[str], None]) -> Preview:
    """Say what `replay` with the same arguments would do; it raises what a replay raises before it loads the policy."""
    inputs = ReplayInputs(config, out_dir, say)
    config, source = inputs.config, inputs.groups()
    groups = [group for step in range(source.num_steps) for group in source.groups(step)]
    work = {
        "steps": source.num_steps,
        "rollouts": source.num_steps * config.source.per_pool * len(inputs.pools),
        "prompt tokens": sum(len(ids) for group in groups for ids in group.prompt_ids),
        "completion tokens": sum(len(ids) for group in groups for ids in group.completion_ids),
        "cells (arms x conditions)": len(config.intervention.arms) * len(config.objectives()),
    }
    return _preview(inputs, directory, work)


def preview_training(config: TrainConfig, directory: Path, *, out_dir: Path) -> Preview:
    """Say what `train` with the same arguments would sample, in one process; it raises as `preview_replay`."""
    inputs = TrainingInputs(config, out_dir)
    config, rollouts, evaluation = inputs.config, inputs.config.rollouts, inputs.config.evaluation
    sampled = len(inputs.candidates) * rollouts.prompts_per_step * rollouts.group
    evaluated = evaluation.num_problems * evaluation.rollouts_per_problem * len(eval_settings(config))
    times = len({*range(0, config.steps, evaluation.every), config.steps})  # before steps, and after the last one
    work = {
        "steps": config.steps,
        "rollouts in training": sampled,
        "evaluations": times,
        "rollouts in an evaluation": evaluated,
        "completion tokens at most": (sampled + times * evaluated) * rollouts.sampler.max_new_tokens,
    }
    return _preview(inputs, directory, work)


def _preview(inputs: Inputs[Any], directory: Path, work: Mapping[str, int]) -> Preview:
    """Preview the run with these inputs."""
    done = find_run(directory, inputs.record(), whole=False)
    num_done = len({row.step for row in done or ()})
    timed = [directory] if num_done else runs_alike(inputs.config, inputs.out_dir)
    times, hours, peak = mean_times(timed), None, None
    state = "new" if done is None else f"continues after {num_done} steps"
    measured = "no run here has such steps; first run the same command with --steps 2 and another --name"
    if done is not None and (directory / MANIFEST_FILE).exists():
        state, hours, measured = "complete, nothing to do", 0.0, "nothing is left"
    elif times is not None:
        hours = (times["start"] + (work["steps"] - num_done) * times["step"]) / 3600
        peak = times["peak"] and times["peak"] / GIB
        where = ", ".join(path.name for path in timed)
        measured = f"measured in {where}: {times['step']:.3g} s a step, {times['start']:.3g} s before the first"
    adapted = adapted_weights(inputs.model)
    if not inputs.config.intervention.v_hack:
        selected_pairs(inputs.config.intervention.extraction)  # refuses faulty pairs
    document = {"path": str(directory), "state": state, "work": work, "hours": hours, "peak_gib": peak}
    return document | {"measured": measured, "model": inputs.model.name, "adapted": adapted}
