"""What a run would need, for `probe spec plan` and `--dry-run`: its adapted modules and its memory.

Of a first run, which finds nothing in the caches: later ones need no pass of the pairs.
Read off shapes: the model is built on the meta device, no weights are loaded. Prompts are measured where problems and
tokenizer are at hand.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from extraction.adapters.targets import adapted_share, find_targets, weight_matrix
from extraction.logprobs import CHUNK_SIZE
from extraction.passes import activation_bytes, tokens_that_fit
from extraction.selection import selected_pairs
from extraction.words import Adapted, ExtractionSettings
from probe.runs.hours import Rows
from probe.settings.arms import Arm, get_arm
from probe.settings.run import StepConfig, TrainConfig
from probe.settings.training import ModelConfig
from replay_pools.environments.loopholes import instructed, render_messages
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.policy.load import ServedPolicy, check_tokenizer_at_hand, load_skeleton, load_tokenizer
from replay_pools.rollout import Template

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
        config: dtype and ranks.
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
        "svd": ("U, Vh and S, as far as needed", (factors + sizes["svd"]) * FLOAT32),
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
def _longest_prompt(model: str, template: Template, env: str, mode: str, hint: bool, instruction: str | None) -> int:
    """Tokens of the longest prompt of an environment; `instruction`: the line that a remedy adds in training."""
    chat = ServedPolicy(load_tokenizer(model, template), model, GenerationConfig())
    environment, longest = get_environment(env), 0
    for problem in [*environment.problems("train"), *environment.problems("eval")]:
        messages = render_messages(problem, mode, hint=hint)
        if instruction is not None:
            messages = instructed(messages, instruction)
        longest = max(longest, len(chat.render(messages)[1]))
    return longest


def sampled_rows(config: TrainConfig, model: str, number: int) -> Rows:
    """So many rollouts, each as long as it may be."""
    rollouts, remedy = config.rollouts, config.remedy
    instruction = None if remedy is None else remedy.update_instruction
    longest = _longest_prompt(model, config.model.template, rollouts.env, rollouts.mode, rollouts.hint, instruction)
    return Rows(number=number, prompt=longest, completion=rollouts.sampler.max_new_tokens)


@cache  # a spec has many runs of one model
def model_skeleton(name: str, dtype: str) -> PreTrainedModel:
    """The model on the meta device, in the dtype of the run."""
    return load_skeleton(name).to(getattr(torch, dtype))


@cache  # a spec has many runs with the same pairs
def pair_rows(name: str, template: Template, extraction: ExtractionSettings) -> Rows:
    """Both completions of every pair, each with its prompt."""
    chat, prompts, completions = ServedPolicy(load_tokenizer(name, template), name, GenerationConfig()), [], []
    for pair in selected_pairs(extraction):
        prompts += [len(chat.render(pair.messages)[1])] * 2
        completions += [len(chat.completion_ids(completion)) for completion in (pair.hack, pair.clean)]
    return Rows.of(prompts, completions)


def pairs_of(config: StepConfig) -> list[ExtractionSettings]:
    """The sets of pairs whose gradients a first run makes."""
    sources = [] if config.intervention.v_hack else [config.intervention.extraction]
    if any(get_arm(name).directions == "placebo" for name in config.intervention.arms):
        sources.append(ExtractionSettings(pairs="builtin:placebo"))
    return sources


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
    skeleton = model_skeleton(model, config.model.dtype)
    itemsize, backbone = skeleton.dtype.itemsize, skeleton.base_model
    assert isinstance(backbone, PreTrainedModel)
    tokens = extraction.tokens_per_batch or tokens_that_fit(backbone)
    try:
        if notes is not None:
            check_tokenizer_at_hand(model)
        if isinstance(config, TrainConfig):
            step_tokens = sampled_rows(config, model, num_samples).tokens
    except InputError as error:
        if notes is None:
            raise
        # Files of problems that are not there have been noted already, and conditions lack the same ones.
        if not any(str(error) in note for note in notes):
            notes.append(f"the memory is without prompts: {error}")
        step_tokens = None
    if step_tokens is not None:
        tokens = min(
            tokens,
            max([step_tokens, *(pair_rows(model, config.model.template, pairs).tokens for pairs in pairs_of(config))]),
        )
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
    skeleton = model_skeleton(model, config.dtype)
    return adapted_share(skeleton, find_targets(skeleton, config.targets))
