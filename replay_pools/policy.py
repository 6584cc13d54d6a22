"""A policy: a causal language model with its tokenizer, loaded from a name.

A name is `organism` (embedded), a local directory, a `.gguf` file, or a hub id.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, final

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from replay_pools.chat import Chat, turn_ends
from replay_pools.errors import InputError
from replay_pools.quiet import quiet_peft

ORGANISM = "organism"
ORGANISM_WEIGHTS = Path(__file__).parent / "organism" / "weights"
HUB_SECONDS = 10
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@final
@dataclass(frozen=True, slots=True)
class Policy(Chat):
    """A loaded model in evaluation mode, its tokenizer, and the names that manifests record."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    base_model: str  # the name it was loaded by
    adapter: str | None  # merged adapter, when there is one
    base_weights_sha: str  # of the weights before any adapter: see weights_sha

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def pad_id(self) -> int:
        """The padding id; any id serves where the tokenizer has none, since masks are made by length."""
        pad = self.tokenizer.pad_token_id
        return pad if isinstance(pad, int) else 0

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn."""
        return turn_ends(self.model.generation_config, self.tokenizer)


@final
@dataclass(frozen=True, slots=True)
class ServedPolicy(Chat):
    """A policy whose weights are on a server: what is known of it here."""

    tokenizer: PreTrainedTokenizerBase
    base_model: str  # the name that tokenizer and generation config were loaded by
    generation: GenerationConfig

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn."""
        return turn_ends(self.generation, self.tokenizer)


def load_policy(name: str, *, adapter: str | None = None, dtype: str = "float32", device: str = "auto") -> Policy:
    """Load a policy by name; `adapter` (a directory, or `teacher` of the organism) is merged into the weights.

    Raises:
        InputError: unknown dtype, no such device, no such model or adapter.
    """
    if dtype not in DTYPES:
        raise InputError("--dtype", expected=f"one of {', '.join(DTYPES)}", found=repr(dtype))
    target = pick_device(device)
    source, options = _source(name)
    with _readable(name):
        model = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype], **options)
    tokenizer = load_tokenizer(name)
    digest = weights_sha(model)
    if adapter is not None:
        model = _merge_adapter(model, name, adapter)
    model.to(device=target)  # type: ignore[call-arg]
    return Policy(model.eval().requires_grad_(False), tokenizer, name, adapter, digest)


def load_served_policy(name: str) -> ServedPolicy:
    """The policy of that name without its weights; InputError when there is no such model."""
    source, options = _source(name)
    with _readable(name):
        try:
            generation = GenerationConfig.from_pretrained(source, **options)
        except OSError:  # as transformers does for the model itself
            generation = GenerationConfig.from_model_config(AutoConfig.from_pretrained(source, **options))
    return ServedPolicy(load_tokenizer(name), name, generation)


def load_skeleton(name: str) -> PreTrainedModel:
    """The architecture of a policy on the meta device, by the same names: shapes without weights."""
    source, options = _source(name)
    with _readable(name):
        config = AutoConfig.from_pretrained(source, **options)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a policy alone, by the same names; InputError when there is no such model."""
    source, options = _source(name)
    with _readable(name):
        return AutoTokenizer.from_pretrained(source, **options)


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn what transformers raises for a model that cannot be loaded into one line."""
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise _no_model(name, str(error).strip().splitlines()[0]) from error


def _no_model(name: str, found: str) -> InputError:
    close = get_close_matches(name, [ORGANISM])
    return InputError(
        f"model {name}",
        expected="`organism`, a model directory, a .gguf file or a reachable hub id",
        found=found,
        fix=f"did you mean {close[0]}?" if close else "check the name, or download the model and pass its directory",
    )


def weights_sha(model: PreTrainedModel) -> str:
    """sha256 over names, shapes and bfloat16 values: the same whichever dtype the weights were loaded in."""
    digest = hashlib.sha256()
    for name, value in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(value.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().data)
    return digest.hexdigest()


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA when there is one; InputError when the named device is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            "--device", expected="auto, cpu or a present device", found=f"{name!r} ({str(error).splitlines()[0]})"
        ) from error


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """(first argument, keyword arguments) of from_pretrained."""
    path = ORGANISM_WEIGHTS if name == ORGANISM else Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"model {name}", expected="a .gguf file", found="no such file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {"local_files_only": True}
    if name.startswith(("/", "./", "../")):
        raise InputError(f"model {name}", expected="a model directory", found="no such directory")
    _check_hub(name)
    return name, {}


@cache
def _check_hub(name: str) -> None:
    """InputError where a model is not in the hub's cache and the hub out of reach: transformers would retry a minute.

    What the hub itself answers, and what is no name of it, is left to transformers.
    """
    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            HfApi().model_info(name, timeout=HUB_SECONDS)
    except Exception as error:  # of whichever client the hub's library uses
        if not isinstance(error, (HfHubHTTPError, OfflineModeIsEnabled, ValueError)):
            raise _no_model(name, f"none of these, and {HfApi().endpoint} does not answer: {error}") from error


def _merge_adapter(model: PreTrainedModel, name: str, adapter: str) -> PreTrainedModel:
    path = ORGANISM_WEIGHTS / adapter if name == ORGANISM and "/" not in adapter else Path(adapter)
    if not (path / "adapter_config.json").is_file():
        raise InputError(f"adapter {adapter}", expected="a directory with adapter_config.json", found=str(path))
    with quiet_peft():
        return PeftModel.from_pretrained(model, str(path)).merge_and_unload()  # type: ignore[return-value]
