"""PushedEngine: sample from the policy in training on a server, which loads each changed adapter.

Servers know one kind of adapter, LoRA. The LoRA basis is written as it is, delta_S as an equal LoRA of its rank
(`extraction.adapters.trained`), in a peft directory on a disk that trainer and server share. The directory's name is a
hash of the weights, so equal weights are loaded once, and the server never answers with the weights or cached prefixes
of an older step. The server's name for it begins with a hash of its path, so that two runs on one server with equal
weights do not unload each other's adapter.
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import orjson
import torch

from extraction.adapters.trained import Trained, lora_rank, save_as_lora
from probe.settings.rollouts import RolloutConfig
from replay_pools.base.errors import InputError
from replay_pools.engines import Sampler
from replay_pools.policy.chat import Chat
from replay_pools.rollout import Completion
from replay_pools.serving.connection import Connection, backoff
from replay_pools.serving.engine import ServerEngine, connect
from replay_pools.serving.replica import Limits

# The largest --max-lora-rank in vLLM's documentation (0.14 to 0.33). SGLang states none, but an adapter as large as the
# weights would slow a server down.
MAX_RANK = 512


def connected(urls: Sequence[str], rollouts: RolloutConfig, chat: Chat, kept: Path) -> ServerEngine:
    """Connect to the server of the settings; `kept` is as in `connect`."""
    limits = Limits(
        timeout_s=rollouts.server_timeout_s,
        most_bytes=rollouts.server_answer_mib << 20,
        least_bytes_per_s=rollouts.server_bytes_per_s,
    )
    connection = Connection(
        urls=tuple(urls),
        limits=limits,
        pauses_s=backoff(rollouts.server_wait_s),
        concurrency=rollouts.server_concurrency,
    )
    return connect(connection, chat, served_model=rollouts.served_model, kind=rollouts.server_dialect, kept=kept)


def served_name(adapter: Path) -> str:
    """Return the server's name for the adapter in a directory; equal weights at another path get another name."""
    place = hashlib.sha256(str(adapter.parent.resolve()).encode()).hexdigest()[:8]
    return f"{place}-{adapter.name}"


def forget_adapter(engine: ServerEngine, adapter: Path) -> None:
    """Unload the adapter in a directory from the server, if it is loaded."""
    engine.unload(served_name(adapter))


@final
class PushedEngine:
    """An `Engine` (`replay_pools.engines`) with the weights of `trained` at each call.

    Args:
        base: the engine of the base model on the server.
        trained: the policy in training: LoRA, or delta_S of rank MAX_RANK or less.
        directory: folder for adapters, at the same path on the server.
        adapter: the policy's name in pools.

    Raises:
        InputError: delta_S of a higher rank, or a served model that is an adapter.
    """

    def __init__(self, base: ServerEngine, trained: Trained, directory: Path, *, adapter: str) -> None:
        if trained.basis == "svd" and lora_rank(trained) > MAX_RANK:
            raise InputError(
                "rollouts engine server",
                expected=f"delta_S of rank {MAX_RANK} or less, which servers take as a LoRA adapter",
                found=f"rank {lora_rank(trained)}",
                fix=f"set model.svd_rank to {MAX_RANK} or less, train the arm projected-lora, or sample locally",
            )
        if base.is_adapter:
            raise InputError("--served-model", expected="a base model to train", found=f"{base.model}")
        self._base, self._trained, self._directory, self._adapter = base, trained, directory, adapter
        self._pushed: tuple[Path, ServerEngine] | None = None  # the loaded adapter and its engine

    @property
    def chat(self) -> Chat:
        """Chat template and tokenizer of the policy."""
        return self._base.chat

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """Return one completion a prompt from the current policy."""
        return self._current().sample(prompts, sampler, seeds=seeds)

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Return the base engine's description, with the policy's name."""
        header = self._base.describe(sampler)
        return header | {"policy": header["policy"] | {"adapter": self._adapter}}

    def save(self, label: str) -> Path:
        """Save the current weights, for `load`, as a peft directory named by their hash and a label."""
        return self._saved(f"probe-{self._digest()}-{label}")

    def load(self, adapter: Path) -> ServerEngine:
        """Return an engine for a saved adapter, independent of the current weights; the caller unloads it."""
        try:
            return self._base.with_adapter(served_name(adapter), adapter)
        except InputError:  # one replica may have it
            forget_adapter(self._base, adapter)
            raise

    def close(self) -> None:
        """Unload the adapter and delete its directory."""
        if self._pushed is not None:
            adapter, engine = self._pushed
            forget_adapter(engine, adapter)
            shutil.rmtree(adapter)
            self._pushed = None

    def _current(self) -> ServerEngine:
        """Return the engine of the current weights; if they are new, load them and unload the old ones."""
        name = f"probe-{self._digest()}"
        if self._pushed is None or self._pushed[0].name != name:
            # Load the new adapter first: if that fails, `close` still removes the old one.
            adapter = self._saved(name)
            engine = self.load(adapter)
            self.close()
            self._pushed = adapter, engine
        return self._pushed[1]

    def _digest(self) -> str:
        """Return 16 hex digits of a hash over the basis and every coordinate."""
        digest = hashlib.sha256(orjson.dumps(self._trained.fingerprint, option=orjson.OPT_SORT_KEYS))
        for vector in self._trained.values().values():
            # Viewed as bytes, because numpy has no bfloat16.
            digest.update(vector.cpu().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def _saved(self, name: str) -> Path:
        """Save the adapter as a peft directory."""
        path = self._directory / name
        if not path.exists():
            # Renamed when complete, so that a directory of this name always holds a whole adapter.
            unfinished = self._directory / f".{name}.tmp"
            if self._trained.basis == "svd":
                save_as_lora(self._trained, unfinished)
            else:
                self._trained.save(unfinished)
            unfinished.rename(path)
        return path
