"""probe.load, and policies by their settings: a model with its tokenizer and adapter, and its frames."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from extraction.adapters.frames import Frames, lora_frames, svd_frames
from extraction.adapters.targets import adapted_share, find_targets
from extraction.settings import Adapted, Basis
from probe.records.run import ADAPTER_DIR, CONFIG_FILE, DEFAULT_OUT, read_manifest
from probe.settings.training import ModelConfig
from probe.settings.verbs import TrainConfig, read_config
from probe.settings.words import Dtype
from replay_pools.base.errors import InputError
from replay_pools.base.files import by_name, read_json
from replay_pools.policy.load import ORGANISM, Policy, load_policy, load_skeleton, scaled_adapter, weights_sha


def load(
    name: str | Path,
    *,
    adapter: str | Path | None = None,
    dtype: Dtype | None = None,
    device: str = "auto",
    out: str | Path = DEFAULT_OUT,
) -> Policy:
    """Load a model in evaluation mode with its tokenizer, by a name as for --model or from a training.

    >>> policy = probe.load("organism")
    >>> policy
    Policy(base_model='organism', adapter=None)
    >>> policy.decode(policy.completion_ids("return a + b"))
    'return a + b'

    Args:
        name: `organism`, a directory or a hub id; or a run of `probe train`, by its path or its name in
            `out`/runs, for the model it trained.
        adapter: a directory of peft or `probe train` to merge into the weights; None = the training's, or none.
        dtype: precision of the weights; None = the training's, or float32.
        device: `auto` (CUDA if present), or a torch device.
        out: the folder of runs and caches.

    Returns:
        A policy: `.model` and `.tokenizer` of transformers, with `render`, `completion_ids` and `decode`.

    Raises:
        InputError: no such model, adapter or device; or a run that is not a finished training.
    """
    name, out = str(name), Path(out)
    training = None if name == ORGANISM else finished_training(by_name(Path(name), out / "runs" / Path(name).name))
    config = ModelConfig(name=name) if training is None else training.model
    given = {"adapter": adapter and str(adapter), "dtype": dtype}
    config = replace(config, device=device, **{key: value for key, value in given.items() if value is not None})
    return configured_policy(config, out / "cache")


def finished_training(directory: Path) -> TrainConfig | None:
    """Return the settings of a finished training; None if the directory holds no run.

    Raises:
        InputError: a run that is not a finished training, or one of another schema.
    """
    path = directory / CONFIG_FILE
    table = read_json(path) if path.is_file() else None  # models also have a config.json
    if not isinstance(table, dict) or "settings" not in table:
        return None
    read_manifest(directory)  # refuse an older schema before its settings
    config = read_config(table["settings"], f"{path} settings")
    if not isinstance(config, TrainConfig):
        raise InputError(directory, expected="a finished run of probe train", found=config.verb)
    return replace(config, model=replace(config.model, adapter=str(directory / ADAPTER_DIR)))


def configured_policy(model: ModelConfig, cache_dir: Path, *, device: str | None = None) -> Policy:
    """Load the policy of the table `model`, with its adapter: any of peft's, or one of `probe train`.

    `device` replaces the model's. InputError as in `load_policy`.
    """
    return load_policy(
        str(model.name),
        adapter=model.adapter,
        dtype=model.dtype,
        device=device or model.device,
        svd_cache=cache_dir / "svd",
        template=model.template,
    )


def configured_adapter(model: ModelConfig) -> tuple[Path, float] | None:
    """Return (directory, scale) of the adapter of the table `model`; None without one."""
    return None if model.adapter is None else scaled_adapter(str(model.name), model.adapter)


def configured_frames(policy: Policy, basis: Basis, config: ModelConfig, cache_dir: Path) -> Frames:
    """Make the frames of the policy in a basis, by the table `model`."""
    named = {"model_id": policy.base_model, "start_adapter": policy.adapter_sha}
    if basis == "lora":
        return lora_frames(policy.model, config.targets, rank=config.lora_rank, **named)
    return svd_frames(policy.model, config.targets, rank=config.svd_rank, cache_dir=cache_dir / "svd", **named)


def adapted_weights(model: ModelConfig) -> Adapted:
    """Return the adapted part of a model, from its shapes alone.

    Raises:
        InputError: no such model, or no matching target.
    """
    skeleton = load_skeleton(str(model.name)).to(getattr(torch, model.dtype))
    return adapted_share(skeleton, find_targets(skeleton, model.targets))


def as_policy(model: Any, tokenizer: Any = None) -> Policy:
    """Wrap a transformers model and its tokenizer as a policy; return a policy unchanged.

    Raises:
        InputError: another kind of model, a peft model, or no tokenizer.
    """
    if isinstance(model, Policy):
        return model
    if not isinstance(model, PreTrainedModel) or isinstance(model, PeftModel):
        fix = "of an adapter: model.merge_and_unload()" if isinstance(model, PeftModel) else "see help(probe.load)"
        expected, found = "a name, what probe.load gives, or a causal model of transformers", type(model).__name__
        raise InputError("model", expected=expected, found=found, fix=fix)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        found = type(tokenizer).__name__
        raise InputError("tokenizer", expected="the model's, of transformers", found=found)
    name = str(model.config._name_or_path or type(model).__name__)
    return Policy(tokenizer, name, model.generation_config, model, None, weights_sha(model))
