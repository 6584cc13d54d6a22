"""Check a peft adapter in a directory and merge it into a model. No code from the files runs.

An adapter trained on top of another one holds it in its folder `start`; starts are merged first. A directory without an
adapter for this model raises one InputError.

A scale multiplies the weight change of the adapter, not of its start. Scales between 0 and 1 give policies between the
start and the trained policy (Ilharco et al. 2023, Editing models with task arithmetic).
"""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peft import PeftConfig, PeftModel
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import PeftType
from peft.utils.save_and_load import set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import PreTrainedModel

from replay_pools.base.errors import InputError
from replay_pools.base.files import write_atomic

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DELTA_S = "DELTA_S"  # the peft type that `extraction.adapters.delta_s` registers
START = "start"  # folder, in an adapter's directory, of the adapter that training started from
SCALED = ("lora_B", "lora_embedding_B", "delta_S")  # a scale multiplies these: the weight change is linear in them
UNSCALED = ("lora_A", "lora_embedding_A")  # a scale leaves these alone
KEEPS_BASE = (True, False, "gaussian", "eva", "orthogonal", "mica")  # values of `init_lora_weights`


def merge_adapter(
    model: PreTrainedModel, directory: Path, *, scale: float = 1.0, svd_cache: Path | None = None
) -> PreTrainedModel:
    """Merge a peft adapter, after the one in its `start`, into the weights of a model and return the model.

    Args:
        model: the base model.
        directory: the adapter.
        scale: factor on the weight change.
        svd_cache: folder with the SVDs that delta_S adapters need; None computes them.

    Raises:
        InputError: no adapter, or one for another model; weights that are damaged, not safetensors, or missing from
            the configuration; a kind that peft does not know, or cannot merge or scale.
    """
    config = _checked_config(directory)
    if (directory / START).is_dir():
        model = merge_adapter(model, directory / START, svd_cache=svd_cache)
    tensors = load_file(directory / WEIGHTS) if scale == 1 else _scaled(directory, scale)
    if svd_cache is not None and config.peft_type == DELTA_S:
        config.svd_cache = str(svd_cache)  # type: ignore[attr-defined]
    try:
        with quiet_peft(), warnings.catch_warnings():
            # An incomplete adapter would be another policy.
            warnings.filterwarnings("error", ".*missing adapter keys", UserWarning)
            adapted = PeftModel.from_pretrained(model, str(directory), config=config)
            # peft silently skips tensors that its configuration does not name.
            if left_out := set_peft_model_state_dict(adapted, tensors).unexpected_keys:
                expected = f"weights only of modules named in {CONFIG}"
                raise InputError(directory / WEIGHTS, expected=expected, found=f"{len(left_out)} others: {left_out[0]}")
            _check_shared(adapted, directory)
            return adapted.merge_and_unload()  # type: ignore[return-value]
    except InputError:
        raise
    # A wrong shape, module name or option raises any exception of peft or torch.
    except Exception as error:
        raise _no_adapter(directory, f"an adapter of {model.config.model_type}", error) from error


def adapter_sha(directory: Path, scale: float = 1.0) -> str:
    """Return the sha256 over an adapter's files, its starts and its scale; InputError without an adapter."""
    digest = hashlib.sha256(b"" if scale == 1 else repr(scale).encode())
    for folder in _chain(directory):
        _checked_config(folder)
        for name in (CONFIG, WEIGHTS):
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def copy_adapter(source: Path, target: Path, scale: float = 1.0) -> None:
    """Copy a scaled adapter with its starts; every file is written atomically."""
    for folder in _chain(source):
        files = {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}
        if folder == source and scale != 1:
            files[WEIGHTS] = save(_scaled(source, scale), metadata={"format": "pt"})
        for name, content in files.items():
            write_atomic(target / folder.relative_to(source) / name, content)


def _scaled(directory: Path, scale: float) -> dict[str, Tensor]:
    """Return the tensors of an adapter, scaled.

    Raises:
        InputError: the weight change is not linear in the tensors.
    """
    tensors = load_file(directory / WEIGHTS)
    for name, tensor in tensors.items():
        if any(part in name for part in SCALED):
            tensors[name] = tensor * scale
        elif not any(part in name for part in UNSCALED):
            raise InputError(directory, expected="LoRA or delta_S, as only these can be scaled", found=name)
    return tensors


def _check_shared(adapted: PeftModel, directory: Path) -> None:
    """Raise InputError if an adapted module shares its weight: merging would change the other modules too."""
    paths: dict[int, list[str]] = {}
    for name, parameter in adapted.get_base_model().named_parameters(remove_duplicate=False):
        paths.setdefault(id(parameter), []).append(name.replace(".base_layer", "").removesuffix(".weight"))
    for module in adapted.modules():
        # Trainable tokens change the shared weight for all modules on purpose.
        if isinstance(module, BaseTunerLayer) and not isinstance(module, TrainableTokensLayer):
            sharing = paths.get(id(getattr(module.get_base_layer(), "weight", None)), [])
            if len(sharing) > 1:
                fix = "merge it into a model with separate weights (tie_word_embeddings=False)"
                found = f"an adapter of {sharing[0]}, tied to {sharing[1]}"
                raise InputError(directory, expected="an adapter of weights that are not tied", found=found, fix=fix)


def _chain(directory: Path) -> Iterator[Path]:
    """Yield the directory of an adapter, then its start's, and so on."""
    yield directory
    while (directory := directory / START).is_dir():
        yield directory


def _checked_config(directory: Path) -> PeftConfig:
    """Return the configuration of an adapter; InputError if it or its weights are damaged or cannot be merged."""
    path = directory / CONFIG
    try:
        with safe_open(directory / WEIGHTS, framework="np"), quiet_peft():  # before a model is loaded
            config = PeftConfig.from_pretrained(str(directory))
    except Exception as error:  # damaged files raise any exception
        raise _no_adapter(f"adapter {directory}", f"an adapter of peft, {CONFIG} and {WEIGHTS}", error) from error
    if (kind := getattr(config, "init_lora_weights", True)) not in KEEPS_BASE:
        fix = "save it as plain LoRA: save_pretrained(..., path_initial_model_for_weight_conversion=...)"
        raise InputError(path, expected="an adapter that keeps the base", found=f"init_lora_weights {kind}", fix=fix)
    # These add to the input, or load further adapters.
    if config.is_prompt_learning or config.peft_type == PeftType.XLORA:
        raise InputError(path, expected="an adapter that can be merged into the weights", found=str(config.peft_type))
    return config


def _no_adapter(where: object, expected: str, error: Exception) -> InputError:
    lines = str(error).strip().splitlines() or ["none"]
    # torch puts the details on the second line.
    return InputError(where, expected=expected, found=" ".join(line.strip() for line in lines[:2])[:300])


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silence the warning that peft 0.21 causes by reading a property that transformers 5.23 renamed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield
