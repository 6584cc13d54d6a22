"""Merge a peft adapter from a directory into a model, after checking the files: nothing in them is executed.

An adapter that was trained on top of another one has that one, its start, in its folder `start`; starts are merged
first. Every way in which a directory can be no adapter of this model is one InputError.

A scale multiplies the change of the weights by the adapter, not by its start: between 0 and 1 lie policies between the
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
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import PreTrainedModel

from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_atomic
from replay_pools.base.tensors import check_tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DELTA_S = "DELTA_S"  # the kind of `extraction.adapters.delta_s`, which registers it with peft
START = "start"  # the folder in an adapter's directory with the adapter that it was trained on top of
LINEAR = ("lora_B", "lora_embedding_B", "delta_S")  # the change of a module's weights is linear in these tensors
UNSCALED = ("lora_A", "lora_embedding_A")  # tensors that a scale leaves alone
# Initialisations of LoRA (`init_lora_weights`) by what peft does to the base as it loads the adapter.
KEEPS_BASE = (True, False, "gaussian", "eva", "orthogonal", "mica")
CHANGES_BASE = ("pissa", "olora", "loftq")  # in the same way as before the training
CONVERT = "save it as plain LoRA: save_pretrained(..., path_initial_model_for_weight_conversion=...)"


def merge_adapter(
    model: PreTrainedModel, directory: Path, *, scale: float = 1.0, svd_cache: Path | None = None
) -> PreTrainedModel:
    """Return the model with the adapter of a peft directory merged into its weights, after the one in its `start`.

    Args:
        model: the base model.
        directory: of the adapter.
        scale: multiplies what it adds.
        svd_cache: folder of the SVDs of the weights, which an adapter of kind delta_S multiplies; None computes them.

    Raises:
        InputError: no adapter; its weights are damaged, not safetensors or more than its configuration names; peft
            does not know its kind, or cannot merge or scale it; it is of another model.
    """
    config = _checked_config(directory)
    if (directory / START).is_dir():
        model = merge_adapter(model, directory / START, svd_cache=svd_cache)
    tensors = load_file(directory / WEIGHTS) if scale == 1 else _scaled(directory, scale)
    if svd_cache is not None and config.peft_type == DELTA_S:
        config.svd_cache = str(svd_cache)  # type: ignore[attr-defined]
    try:
        with quiet_peft(), warnings.catch_warnings():
            # An adapter of which a part is missing would be another policy.
            warnings.filterwarnings("error", ".*missing adapter keys", UserWarning)
            adapted = PeftModel.from_pretrained(model, str(directory), config=config)
            # peft loads what its configuration names, and does not say what it leaves out.
            left_out = set_peft_model_state_dict(adapted, tensors).unexpected_keys
            if left_out:
                expected = f"weights of the modules that {CONFIG} names"
                raise InputError(directory / WEIGHTS, expected=expected, found=f"{len(left_out)} others: {left_out[0]}")
            _check_shared(adapted, directory)
            return adapted.merge_and_unload()  # type: ignore[return-value]
    except InputError:
        raise
    # Shapes, names of modules and options that do not fit raise whatever the code of the adapter meets first.
    except Exception as error:
        raise _no_adapter(directory, f"an adapter of {model.config.model_type}", str(error)) from error


def adapter_sha(directory: Path, scale: float = 1.0) -> str:
    """Return the sha256 over the files of an adapter, of its starts, and its scale; InputError without an adapter."""
    digest = hashlib.sha256(b"" if scale == 1 else repr(scale).encode())
    for folder in _chain(directory):
        _checked_config(folder)
        for name in (CONFIG, WEIGHTS):
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def copy_adapter(source: Path, target: Path, scale: float = 1.0) -> None:
    """Copy an adapter by its scale, with its starts; every file is written whole or not at all."""
    for folder in _chain(source):
        files = {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}
        if folder == source and scale != 1:
            files[WEIGHTS] = save(_scaled(source, scale), metadata={"format": "pt"})
        for name, content in files.items():
            write_atomic(target / folder.relative_to(source) / name, content)


def _scaled(directory: Path, scale: float) -> dict[str, Tensor]:
    """Return the tensors of an adapter with a multiple of its change of the weights.

    Raises:
        InputError: the change is not linear in the tensors, or is more than they add, since peft changes the base too.
    """
    tensors = load_file(directory / WEIGHTS)
    if (kind := getattr(_checked_config(directory), "init_lora_weights", True)) not in KEEPS_BASE:
        expected = "an adapter that leaves the base as it is, which can be scaled"
        raise InputError(directory, expected=expected, found=f"init_lora_weights {kind}", fix=CONVERT)
    for name, tensor in tensors.items():
        if any(part in name for part in LINEAR):
            tensors[name] = tensor * scale
        elif not any(part in name for part in UNSCALED):
            raise InputError(directory, expected="LoRA or delta_S alone, which can be scaled", found=name)
    return tensors


def _check_shared(adapted: PeftModel, directory: Path) -> None:
    """Raise InputError where an adapted module shares its weight: merging would change the other modules too."""
    paths: dict[int, list[str]] = {}
    for name, parameter in adapted.get_base_model().named_parameters(remove_duplicate=False):
        paths.setdefault(id(parameter), []).append(name.replace(".base_layer", "").removesuffix(".weight"))
    for module in adapted.modules():
        # Trainable tokens are replaced in the shared weight, for every module alike.
        if isinstance(module, BaseTunerLayer) and not isinstance(module, TrainableTokensLayer):
            sharing = paths.get(id(getattr(module.get_base_layer(), "weight", None)), [])
            if len(sharing) > 1:
                fix = "merge it into a model that has its own weight for each (tie_word_embeddings=False)"
                found = f"one of {sharing[0]}, which {sharing[1]} shares"
                raise InputError(directory, expected="an adapter of weights of one module", found=found, fix=fix)


def _chain(directory: Path) -> Iterator[Path]:
    """Yield the directory of an adapter, then of its start, and so on."""
    yield directory
    while (directory := directory / START).is_dir():
        yield directory


def _checked_config(directory: Path) -> PeftConfig:
    """Return the configuration of an adapter; InputError where it or its weights are damaged, or cannot be merged."""
    path = directory / CONFIG
    if not path.is_file():
        raise InputError(f"adapter {directory}", expected=f"a directory with {CONFIG}", found="none")
    table = read_json(path)  # strict, and of a bounded size
    if isinstance(table, dict) and table.get("peft_type") == DELTA_S and DELTA_S not in PeftType.__members__:
        fix = "load it by probe.load, which knows the adapters of probe train"
        raise InputError(path, expected="an adapter of peft", found=DELTA_S, fix=fix)
    if not (directory / WEIGHTS).is_file() and (pickled := [*directory.glob("*.bin"), *directory.glob("*.pt")]):
        fix = "save it again with safe_serialization=True"
        raise InputError(directory, expected=f"{WEIGHTS}: safetensors only", found=pickled[0].name, fix=fix)
    check_tensors(directory / WEIGHTS)
    try:
        with quiet_peft():
            config = PeftConfig.from_pretrained(str(directory))
    except Exception as error:
        raise _no_adapter(path, "the configuration of an adapter", str(error)) from error
    if (kind := getattr(config, "init_lora_weights", True)) not in (*KEEPS_BASE, *CHANGES_BASE):
        expected = "an adapter of a base that peft makes again as it was in the training"
        raise InputError(path, expected=expected, found=f"init_lora_weights {kind}", fix=CONVERT)
    # These add to the input, or load adapters from elsewhere.
    if config.is_prompt_learning or config.peft_type == PeftType.XLORA:
        raise InputError(path, expected="an adapter that can be merged into the weights", found=str(config.peft_type))
    return config


def _no_adapter(where: Path, expected: str, reason: str) -> InputError:
    lines = reason.strip().splitlines() or ["none"]
    # torch lists what does not fit below a line that says that something does not.
    return InputError(where, expected=expected, found=" ".join(line.strip() for line in lines[:2])[:300])


@contextmanager
def quiet_peft() -> Iterator[None]:
    """peft 0.21 reads a property that transformers 5.23 renamed, and transformers warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield
