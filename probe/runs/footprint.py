"""What a run would do and need, for `probe spec plan` and `--dry-run`: its work, its adapted modules, its memory.

Of a first run, which finds nothing in the caches: later ones need no pass of the pairs.
Read off shapes: the model is built on the meta device, no weights are loaded. Prompts are measured where problems and
tokenizer are at hand.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from extraction.adapters.targets import adapted_share, find_targets, weight_matrix
from extraction.logprobs import CHUNK_SIZE
from extraction.passes import activation_bytes, tokens_that_fit
from extraction.selection import selected_pairs
from extraction.words import Adapted, ExtractionSettings
from probe.runs.heldout import eval_settings
from probe.runs.replay_inputs import ReplayInputs
from probe.runs.resume import find_run, is_complete
from probe.runs.training_inputs import TrainingInputs
from probe.settings.arms import Arm, get_arm
from probe.settings.run import ReplayConfig, StepConfig, TrainConfig
from probe.settings.training import ModelConfig
from replay_pools.environments.loopholes import instructed, render_messages
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.policy.load import ServedPolicy, check_tokenizer_at_hand, load_skeleton, load_tokenizer

FLOAT32 = 4  # bytes; adapters, factors and gradients, whatever the dtype of the weights
LOGITS = 3  # tensors of the size of a chunk's logits: themselves, their copy, and the derivatives
KERNELS = 64 * 2**20  # bytes, of any model; measured on a CPU: 50 MiB in float32, 130 in bfloat16
TRAINED = "moments of AdamW, gradient, base, EMA, quarantine"
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}


def memory(
    model: PreTrainedModel,
    config: ModelConfig,
    *,
    arms: Sequence[Arm],
    num_samples: int,
    k: int,
    num_pairs: int,
    trains: bool = False,
) -> dict[str, int]:
    """{what: bytes} that a step holds beside the activations, which depend on the lengths of the rollouts.

    Args:
        model: on the meta device; only shapes are read.
        config: dtype, ranks and storage.
        arms: that are measured; those with the same directions share them.
        num_samples: of all groups of a step.
        trains: with an optimizer, references and a quarantine.
    """
    shapes = [weight_matrix(model.get_submodule(name), name).shape for name in find_targets(model, config.targets)]
    itemsize, num_direction_sets = WEIGHT_BYTES[config.dtype], len({arm.directions for arm in arms})
    rows = {f"weights ({config.dtype})": sum(parameter.numel() for parameter in model.parameters()) * itemsize}
    ranks = [min(*shape, config.svd_rank or min(shape)) for shape in shapes]
    sizes = {"svd": sum(ranks), "lora": sum(config.lora_rank * d_out for d_out, _ in shapes)}
    # U and Vh of a square weight, one of them of any other: extraction.adapters.svd (where it is well-conditioned)
    factors = 0
    for rank, (d_out, d_in) in zip(ranks, shapes, strict=True):
        factors += rank * (d_out + d_in if d_out == d_in else min(d_out, d_in))
    frozen = {
        "svd": ("U, Vh and S, as far as needed", factors * WEIGHT_BYTES[config.svd_storage] + sizes["svd"] * FLOAT32),
        "lora": ("A, frozen", sum(config.lora_rank * d_in for _, d_in in shapes) * FLOAT32),
    }
    for basis in sorted({arm.basis for arm in arms}):
        what, num_bytes = frozen[basis]
        size = sizes[basis] * FLOAT32
        rows |= {
            f"{basis}: {what}": num_bytes,
            f"{basis}: coordinates and {num_samples} sample gradients": size * (1 + num_samples),
            f"{basis}: {num_direction_sets} x {k} directions": size * k * num_direction_sets,
            f"{basis}: gradients of {num_pairs} pairs": size * 2 * num_pairs,
        }
        if trains:
            rows[f"{basis}: {TRAINED}"] = size * 6
        if trains and basis == "svd":
            rows["svd: base weights, while delta_S is merged"] = sum(map(math.prod, shapes)) * itemsize
    return rows


@cache  # a spec has many runs
def _longest_prompt(model: str, env: str, mode: str, hint: bool, instruction: str | None) -> int:
    """Tokens of the longest prompt of an environment; `instruction`: the line that a remedy adds in training."""
    chat = ServedPolicy(load_tokenizer(model), model, GenerationConfig())
    environment, longest = get_environment(env), 0
    for problem in [*environment.problems("train"), *environment.problems("eval")]:
        messages = render_messages(problem, mode, hint=hint)
        if instruction is not None:
            messages = instructed(messages, instruction)
        longest = max(longest, len(chat.render(messages)[1]))
    return longest


@cache  # a spec has many runs of one model
def _skeleton(name: str, dtype: str) -> PreTrainedModel:
    """The model on the meta device, in the dtype of the run."""
    return load_skeleton(name).to(getattr(torch, dtype))


@cache  # a spec has many runs with the same pairs
def _pair_tokens(name: str, extraction: ExtractionSettings) -> int:
    """Tokens of both completions of every pair, each with its prompt."""
    chat, tokens = ServedPolicy(load_tokenizer(name), name, GenerationConfig()), 0
    for pair in selected_pairs(extraction):
        prompt = len(chat.render(pair.messages)[1])
        for completion in (pair.hack, pair.clean):
            tokens += prompt + len(chat.completion_ids(completion))
    return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Adapted modules and memory; of activations the most, since they depend on the lengths of the rollouts.

    What sampling caches is not there: it takes what is left, in several batches where all rows do not fit
    (`replay_pools.sampling`).
    """

    model: str
    modules: int  # adapted ones
    adapted: Adapted
    memory: dict[str, int]  # {what: bytes}

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and texts."""
        return asdict(self) | {"memory": [{"what": what, "num_bytes": size} for what, size in self.memory.items()]}


def run_footprint(
    config: StepConfig,
    model: str,
    *,
    num_samples: int,
    step_tokens: int | None = None,
    notes: list[str] | None = None,
) -> Footprint:
    """The footprint of a run in which all its arms are measured.

    Args:
        model: `organism`, a directory or a hub id; no weights are loaded.
        num_samples: of all groups of a step.
        step_tokens: of a replay, prompts and completions of its largest step; None: as large as a pass may be.
        notes: gets why prompts cannot be measured; they are left out, and passes are as large as they may be.

    Raises:
        InputError: no such model or pairs; without `notes`, prompts that cannot be measured.
    """
    arms, extraction = [get_arm(name) for name in config.intervention.arms], config.intervention.extraction
    skeleton = _skeleton(model, config.model.dtype)
    itemsize, backbone = skeleton.dtype.itemsize, skeleton.base_model
    assert isinstance(backbone, PreTrainedModel)
    tokens = extraction.tokens_per_batch or tokens_that_fit(backbone)
    try:
        if notes is not None:
            check_tokenizer_at_hand(model)
        if isinstance(config, TrainConfig):
            rollouts = config.rollouts
            instruction = None if config.remedy is None else config.remedy.update_instruction
            longest = _longest_prompt(model, rollouts.env, rollouts.mode, rollouts.hint, instruction)
            step_tokens = num_samples * (longest + rollouts.sampler.max_new_tokens)
    except InputError as error:
        if notes is None:
            raise
        # Files of problems that are not there have been noted already, and conditions lack the same ones.
        if not any(str(error) in note for note in notes):
            notes.append(f"the memory is without prompts: {error}")
        step_tokens = None
    if step_tokens is not None:
        sources = [] if config.intervention.v_hack else [extraction]
        if any(arm.directions == "placebo" for arm in arms):
            sources.append(ExtractionSettings(pairs="builtin:placebo"))
        tokens = min(tokens, max([step_tokens, *(_pair_tokens(model, pairs) for pairs in sources)]))
    chunk = min(CHUNK_SIZE, tokens)
    logits = LOGITS * chunk * skeleton.config.get_text_config().vocab_size * itemsize
    rows = {
        f"activations of a pass of at most {tokens} tokens": int(tokens * activation_bytes(backbone)),
        f"logits of {chunk} tokens, with derivatives": logits,
        "kernels of torch and their buffers": KERNELS if itemsize >= FLOAT32 else 2 * KERNELS,
    }
    rows |= memory(
        skeleton,
        config.model,
        arms=arms,
        num_samples=num_samples,
        k=extraction.k,
        num_pairs=len(selected_pairs(extraction)),
        trains=config.trains,
    )
    modules = len(find_targets(skeleton, config.model.targets))
    return Footprint(model=model, modules=modules, adapted=adapted_weights(config.model, model), memory=rows)


def adapted_weights(config: ModelConfig, model: str) -> Adapted:
    """How much of a model has coordinates, by its shapes alone.

    Raises:
        InputError: no such model, or no matching target.
    """
    skeleton = _skeleton(model, config.dtype)
    return adapted_share(skeleton, find_targets(skeleton, config.targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A run that has not been started, or not been finished."""

    path: str
    state: str  # new, continues after N steps, complete
    work: Mapping[str, int]  # steps, rollouts, tokens, ...
    footprint: Footprint

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and texts; the footprint's fields beside the others."""
        return {"path": self.path, "state": self.state, "work": self.work, **self.footprint.to_json()}


def preview_replay(
    config: ReplayConfig, directory: Path, *, out_dir: Path, say: Callable[[str], None] = lambda text: None
) -> Preview:
    """What `replay` with the same arguments would do.

    Raises:
        InputError: what `replay` refuses before it loads the policy.
    """
    inputs = ReplayInputs(config, out_dir, say, "cpu")
    config, source = inputs.config, inputs.groups()
    groups = [source.groups(step) for step in range(source.num_steps)]
    prompts = [sum(len(ids) for group in step for ids in group.prompt_ids) for step in groups]
    completions = [sum(len(ids) for group in step for ids in group.completion_ids) for step in groups]
    num_samples = inputs.source.per_pool * len(inputs.pools)
    work = {
        "steps": source.num_steps,
        "rollouts": source.num_steps * num_samples,
        "prompt tokens": sum(prompts),
        "completion tokens": sum(completions),
        "cells (arms x conditions)": len(config.intervention.arms) * len(config.objectives()),
    }
    largest = max(map(sum, zip(prompts, completions, strict=True)))
    footprint = run_footprint(config, inputs.model_name, num_samples=num_samples, step_tokens=largest)
    return _preview(directory, inputs.record_without_weights(), work, footprint)


def preview_training(config: TrainConfig, directory: Path, *, out_dir: Path) -> Preview:
    """What `train` with the same arguments would sample and need, in one process.

    Raises:
        InputError: what `train` refuses before it loads the policy.
    """
    inputs = TrainingInputs(config, out_dir, directory)
    config, rollouts, evaluation = inputs.config, inputs.config.rollouts, inputs.config.evaluation
    settings = eval_settings(evaluation.modes, rollouts.mode, without_hint=evaluation.without_hint)
    num_samples = rollouts.prompts_per_step * rollouts.group
    sampled = inputs.problems.num_batches * num_samples
    evaluated = len(inputs.held_out) * evaluation.rollouts_per_problem * len(settings)
    # An evaluation before every so many steps and one after the last, which are one where they fall together.
    times = len({*range(0, config.steps, evaluation.every), config.steps})
    work = {
        "steps": config.steps,
        "rollouts in training": sampled,
        "evaluations": times,
        "rollouts in an evaluation": evaluated,
        "completion tokens at most": (sampled + times * evaluated) * rollouts.sampler.max_new_tokens,
    }
    footprint = run_footprint(config, str(config.model.name), num_samples=num_samples)
    return _preview(directory, inputs.record(), work, footprint)


def _preview(directory: Path, record: Mapping[str, Any], work: Mapping[str, int], footprint: Footprint) -> Preview:
    """The preview of the run of `record`, some keys of what its `config.json` will hold."""
    done = find_run(directory, record, whole=False)
    state = "new" if done is None else f"continues after {len({row.step for row in done})} steps"
    if done is not None and is_complete(directory):
        state = "complete, nothing to do"
    return Preview(path=str(directory), state=state, work=work, footprint=footprint)
