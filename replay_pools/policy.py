"""A policy: a causal language model with its tokenizer, loaded from a name.

A name is `organism` (embedded), a local directory, a `.gguf` file, or a hub id.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from replay_pools.errors import InputError
from replay_pools.files import sha256
from replay_pools.quiet import quiet_peft

ORGANISM = "organism"
ORGANISM_WEIGHTS = Path(__file__).parent / "organism" / "weights"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class Policy:
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
        config = self.model.generation_config
        configured = None if config is None else config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured, self.tokenizer.eos_token_id]
        return tuple(dict.fromkeys(int(i) for i in ids if isinstance(i, int)))

    def render(self, messages: Sequence[dict[str, str]]) -> tuple[str, list[int]]:
        """The prompt text through the chat template, generation prompt included, and its ids."""
        if not self.tokenizer.chat_template:
            raise InputError(f"model {self.base_model}", expected="a chat template", found="a tokenizer without one")
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return str(text), self.tokenizer.encode(str(text), add_special_tokens=False)

    def prompt_tail(self) -> str:
        """What the template puts after the last user turn: the same for every prompt of a pool."""
        marks = [self.render([{"role": "user", "content": mark}])[0].rpartition(mark)[2] for mark in ("\x01", "\x02")]
        if marks[0] != marks[1]:
            where, found = f"model {self.base_model}", f"{marks[0]!r}, {marks[1]!r}"
            raise InputError(where, expected="one template tail", found=found)
        return marks[0]

    def completion_ids(self, text: str) -> list[int]:
        """Ids of a written (not sampled) completion, ended with the end-of-turn id as a rollout is."""
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.eos_ids[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion ids, special tokens skipped."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def tokenizer_sha(self) -> str:
        """sha256 over the vocabulary and the chat template."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        return sha256(f"{vocabulary!r}\x00{self.tokenizer.chat_template}".encode())

    def template_sha(self) -> str:
        """sha256 of the chat template."""
        return sha256(str(self.tokenizer.chat_template).encode())


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
        raise InputError(
            f"model {name}",
            expected="`organism`, a model directory, a .gguf file or a reachable hub id",
            found=str(error).strip().splitlines()[0],
            fix="check the name, or download the model and pass its directory",
        ) from error


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
    return name, {}


def _merge_adapter(model: PreTrainedModel, name: str, adapter: str) -> PreTrainedModel:
    path = ORGANISM_WEIGHTS / adapter if name == ORGANISM and "/" not in adapter else Path(adapter)
    if not (path / "adapter_config.json").is_file():
        raise InputError(f"adapter {adapter}", expected="a directory with adapter_config.json", found=str(path))
    with quiet_peft():
        return PeftModel.from_pretrained(model, str(path)).merge_and_unload()  # type: ignore[return-value]
