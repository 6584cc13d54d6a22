"""PushedEngine: sample from the policy in training on a server, which loads each changed adapter.

vLLM knows one kind of adapter, LoRA: that of the LoRA basis is written as it is, delta_S as the LoRA of its rank that
it is (`extraction.adapters.trained`). It is a peft directory on a disk that trainer and server share. Its name has a
hash of the weights: the same weights are never loaded twice, and no server answers with the weights (or the cached
prefixes) of an older step. It begins with a hash of the folder: of two runs on one server, which may begin with the
same weights, neither unloads the adapter of the other.
"""

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import orjson
import torch

from extraction.adapters.trained import Trained, save_adapter, save_as_lora
from replay_pools.base.errors import InputError
from replay_pools.pool import Sampler
from replay_pools.rollout import Completion
from replay_pools.serving import ServerEngine, Unreachable

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MAX_RANK = 512  # the largest --max-lora-rank of vLLM (its documentation, 0.14 to 0.33)


def load_adapter(engine: ServerEngine, adapter: Path) -> ServerEngine:
    """Return the engine that samples with an adapter, a peft directory, which the server loads, unless it has it.

    Raises:
        InputError: the server takes no adapters, not this one, or does not see the directory.
    """
    name, path = adapter.name, str(adapter.resolve())
    if name not in engine.server.models():
        flags = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora and a large enough --max-lora-rank"
        fix = f"serve with {flags}, on a machine that sees {path}"
        engine.server.ask_all(LOAD, [{"lora_name": name, "lora_path": path}], lambda i, answer: None, fix=fix)
    return replace(engine, model=name, is_adapter=True)


def unload_adapter(engine: ServerEngine, adapter: Path) -> None:
    """Make the server drop the adapter in a directory, if it has it; a server that is down has forgotten it."""
    server = replace(engine.server, wait_s=0.0)
    with suppress(Unreachable):
        if adapter.name in server.models():
            server.ask_all(UNLOAD, [{"lora_name": adapter.name}], lambda i, answer: None)


@final
class PushedEngine:
    """A `replay_pools.generate.Engine` with the weights of `trained` at each call.

    Args:
        base: the engine of the base model on the server.
        trained: the policy in training: LoRA, or delta_S of rank MAX_RANK or less.
        directory: folder for adapters, at the same path on the server.
        adapter: the policy's name in pools.

    Raises:
        InputError: delta_S of a higher rank, or a served model that is an adapter.
    """

    def __init__(self, base: ServerEngine, trained: Trained, directory: Path, *, adapter: str) -> None:
        if trained.basis == "svd" and (rank := max(trained.sizes.values())) > MAX_RANK:
            raise InputError(
                "--url",
                expected=f"delta_S of rank {MAX_RANK} or less, which vLLM takes as a LoRA adapter",
                found=f"rank {rank}",
                fix=f"set model.svd_rank to {MAX_RANK} or less, train the arm projected-lora, or sample locally",
            )
        if base.is_adapter:
            raise InputError("--served-model", expected="a base model to train", found=f"{base.model}")
        self.base, self.chat, self._trained = base, base.chat, trained
        self._directory, self._adapter = directory, adapter
        self._engine: ServerEngine | None = None  # samples with the newest adapter
        self._stack = ExitStack()  # unloads it

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """Sample one completion a prompt from the present policy; the server forgets its former weights."""
        adapter = self.save()
        if self._engine is None or self._engine.model != adapter.name:
            # Load the new adapter first: if that fails, `close` still removes the old one.
            stack = ExitStack()
            self._engine = self.push(adapter, stack)
            self.close()
            self._stack = stack
        return self._engine.sample(prompts, sampler, seeds=seeds)

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """As the base engine, with the policy's name."""
        header = self.base.describe(sampler)
        return header | {"policy": header["policy"] | {"adapter": self._adapter}}

    def save(self, label: str = "") -> Path:
        """Write the weights as they are now to a peft directory, unless it exists, and return it."""
        place = hashlib.sha256(str(self._directory.resolve()).encode()).hexdigest()[:8]
        digest = hashlib.sha256(orjson.dumps(self._trained.start.fingerprint, option=orjson.OPT_SORT_KEYS))
        for vector in self._trained.values().values():
            # Viewed as bytes, because numpy has no bfloat16.
            digest.update(vector.cpu().view(torch.uint8).numpy().data)
        path = self._directory / f"probe-{place}-{digest.hexdigest()[:16]}{label}"
        if not path.exists():
            # Renamed when complete, so that a directory of this name always holds a whole adapter.
            unfinished = self._directory / f".{path.name}.tmp"
            if self._trained.basis == "svd":
                save_as_lora(self._trained, unfinished)
            else:
                save_adapter(self._trained.model, unfinished)
            unfinished.rename(path)
        return path

    def push(self, adapter: Path, stack: ExitStack) -> ServerEngine:
        """Return an engine that samples from a saved adapter; the stack unloads it and deletes its directory."""
        stack.callback(shutil.rmtree, adapter)
        engine = load_adapter(self.base, adapter)
        stack.callback(unload_adapter, self.base, adapter)
        return engine

    def close(self) -> None:
        """Unload the adapter and delete its directory."""
        self._stack.close()
