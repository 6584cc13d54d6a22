"""Load a policy (a causal language model with its tokenizer) by name.

A name is `organism` (bundled), a local directory or a hub id:

    load_policy(name)           model and tokenizer
    load_served_policy(name)    tokenizer and generation config; the weights are on a server
    load_skeleton(name)         the architecture without weights
    load_tokenizer(name)        the tokenizer alone
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, final

import psutil
import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from replay_pools.base.errors import InputError
from replay_pools.policy.adapters import adapter_sha, merge_adapter
from replay_pools.policy.chat import Chat, make_plain
from replay_pools.rollout import Template

ORGANISM = "organism"
ORGANISM_WEIGHTS = Path(__file__).parents[1] / "organism" / "weights"
SAFE = {"trust_remote_code": False}  # passed to every `from_pretrained`: never run a model's code
HUB_TIMEOUT_S = 10
DTYPES = ("float32", "bfloat16", "float64")
MEMORY_SHARE = 0.5  # of the memory that weights leave, for a batch

# The command line prints its own errors and progress.
transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@final
@dataclass(frozen=True)
class Policy(Chat):
    """A loaded model in evaluation mode, its tokenizer, and the names for manifests."""

    model: PreTrainedModel = field(repr=False)  # it would print all its modules
    adapter: str | None  # the adapter merged into the weights; None = none
    base_weights_sha: str = field(repr=False)  # `weights_sha` before merging
    adapter_sha: str | None = field(default=None, repr=False)  # `replay_pools.policy.adapters.adapter_sha`

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @property
    def pad_id(self) -> int:
        """The tokenizer's padding id, else 0; any id works, as masks follow from lengths."""
        pad = self.tokenizer.pad_token_id
        return pad if isinstance(pad, int) else 0


def load_policy(
    name: str,
    *,
    adapter: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    svd_cache: Path | None = None,
    template: Template = "chat",
) -> Policy:
    """Load a policy by name.

    Args:
        name: as in the module's docstring.
        adapter: adapter to merge into the weights: a peft directory, or `teacher` for the organism's. `teacher:0.5`
            merges half of it. None = the base.
        dtype: precision of the weights, one of DTYPES.
        device: `auto` (CUDA if present), or a torch device.
        svd_cache: folder of SVDs for delta_S adapters; None computes them.
        template: prompt format.

    Raises:
        InputError: unknown dtype, no such device, no such model or adapter.
    """
    if dtype not in DTYPES:
        raise InputError("dtype", expected=f"one of {', '.join(DTYPES)}", found=repr(dtype))
    target = pick_device(device)
    merged = None if adapter is None else scaled_adapter(name, adapter)
    adapter_digest = None if merged is None else adapter_sha(*merged)
    with _located(name) as (source, options):
        # Pickled weights can run code; safetensors cannot.
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, use_safetensors=True, **options)
    digest = weights_sha(model)  # before the adapter, so that pools of base and teacher name the same base
    if merged is not None:
        directory, scale = merged
        model = merge_adapter(model, directory, scale=scale, svd_cache=svd_cache)
    model.to(device=target)  # type: ignore[call-arg]
    model = model.eval().requires_grad_(False)
    tokenizer = load_tokenizer(name, template)
    return Policy(tokenizer, name, model.generation_config, model, adapter, digest, adapter_digest)


def load_served_policy(name: str, template: Template = "chat") -> Chat:
    """Load a policy without its weights, for sampling through a server.

    Raises:
        InputError: no such model.
    """
    with _located(name) as (source, options):
        config = AutoConfig.from_pretrained(source, **options)
        try:
            generation = GenerationConfig.from_pretrained(source, **options)
        except OSError:  # no generation_config.json: use the model's config, as transformers does
            generation = GenerationConfig.from_model_config(config)
    size = config.get_text_config(decoder=True).vocab_size
    return Chat(load_tokenizer(name, template), name, generation, vocabulary_size=size)


def load_skeleton(name: str) -> PreTrainedModel:
    """Return the model on the meta device: modules and shapes, no weights.

    Raises:
        InputError: no such model.
    """
    with _located(name) as (source, options):
        config = AutoConfig.from_pretrained(source, **options)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def load_tokenizer(name: str, template: Template = "chat") -> PreTrainedTokenizerBase:
    """Return the tokenizer of a policy, with its chat template or `plain`.

    Raises:
        InputError: no such model, or a tokenizer that cannot encode text.
    """
    with _located(name) as (source, options):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        tokenizer.encode("a")  # a setting of a wrong type fails at the first use
    if template == "plain":
        make_plain(tokenizer)
    return tokenizer


@contextmanager
def _located(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the first argument and the options of `from_pretrained`; turn any exception into one InputError."""
    path = ORGANISM_WEIGHTS if name == ORGANISM else Path(name)
    try:
        if path.is_dir():
            yield str(path), {**SAFE, "local_files_only": True}
        elif name.startswith(("/", "./", "../")):
            raise FileNotFoundError("no such directory")
        else:
            _check_hub(name)
            yield name, SAFE
    except InputError:
        raise
    except Exception as error:  # damaged files raise any exception
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "trust_remote_code" in str(error):
            reason = "a model with code (auto_map), which is never run"
        fix = "check the name, or download the model and pass its directory"
        if (Path(name) / "adapter").is_dir():
            fix = f"for a training, pass its base and --adapter {name}/adapter"
        expected = "`organism`, a model directory or a reachable hub id"
        raise InputError(f"model {name}", expected=expected, found=reason, fix=fix) from error


@cache  # loading a policy checks for its model and then for its tokenizer
def _check_hub(name: str) -> None:
    """Raise an error if a model is not cached and the hub does not answer: transformers would retry for a minute.

    It handles an answer of the hub ("no such model") itself, and names that cannot be hub ids.
    """
    if not isinstance(try_to_load_from_cache(name, "config.json"), str):
        with suppress(HfHubHTTPError, OfflineModeIsEnabled, ValueError):
            HfApi().model_info(name, timeout=HUB_TIMEOUT_S)


def weights_sha(model: PreTrainedModel) -> str:
    """Return the sha256 of names, shapes and bfloat16 values of all parameters, the same for every dtype."""
    digest = hashlib.sha256()
    for name, value in sorted(model.named_parameters()):
        # numpy has no bfloat16, so its bits pass as int16.
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(value.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().data)
    return digest.hexdigest()


def pick_device(name: str) -> torch.device:
    """Return the named device; `auto` is CUDA if present, else the CPU.

    Raises:
        InputError: no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        # `torch.device` accepts cuda:99 on any machine; allocating fails without the device.
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        found = f"{name!r} ({str(error).splitlines()[0]})"
        raise InputError("--device", expected="auto, cpu or a present device", found=found) from error


def batch_bytes(device: torch.device, held: int) -> int:
    """Return the bytes that a batch may take beside `held` bytes of weights, of a GPU's memory or the machine's."""
    # Of the total, not of what is free now: the split into batches changes the last bits of results, and a resumed run
    # must split as before.
    is_gpu = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).total_memory if is_gpu else psutil.virtual_memory().total
    return int(MEMORY_SHARE * (total - held))


def scaled_adapter(name: str, adapter: str) -> tuple[Path, float]:
    """Parse an adapter of the model `name`, a path or `teacher`, optionally with `:SCALE`, to (directory, scale).

    Raises:
        InputError: the scale is 0, or not finite.
    """
    path, _, number = adapter.rpartition(":")
    scale = 1.0
    with suppress(ValueError):
        scale = float(number) if path else scale
        adapter = path or adapter
    if not math.isfinite(scale) or not scale:
        raise InputError(f"adapter {path}", expected="a finite scale other than 0", found=number)
    # A name with a slash is always a path, so that the organism takes other adapters too.
    return (ORGANISM_WEIGHTS / adapter if name == ORGANISM and "/" not in adapter else Path(adapter)), scale
