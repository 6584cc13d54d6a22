"""Several processes as one run, started by torchrun: ranks share the samples, and may share the base's weights.

A `World` of one process (`SOLO`) needs no process group. In a larger one, rank 0 alone writes the run. Sums cover the
whole step BEFORE any projection: a one-sided projection does not commute with a mean.

`shard_base` spreads the frozen weights of the base over the ranks (FSDP2), block by block: less memory, more
communication, most of all while sampling. A forward then needs weights of other ranks, so all ranks must call the model
equally often.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from replay_pools.base.errors import InputError

Value = TypeVar("Value")
# The variables that torchrun sets, with WORLD_SIZE.
NEEDED = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Long, because ranks wait for one that is merely slow; when a rank dies, torchrun ends the others.
TIMEOUT = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among the ranks of a run."""

    rank: int = 0
    size: int = 1
    local_size: int = 1  # ranks on this machine
    device: str | None = None  # where this rank computes; None = as the configuration says
    shards_base: bool = False  # the weights of the base are spread over the ranks

    @property
    def is_main(self) -> bool:
        """Return whether this rank writes the run."""
        return self.rank == 0

    def loads_on(self, device: str) -> str:
        """Return the device to load the policy on: the CPU if its blocks will be sharded one by one, else `device`."""
        return "cpu" if self.shards_base else self.device or device

    def rows(self, num_rows: int) -> slice:
        """Return this rank's part of `num_rows` rows: contiguous, in order of the ranks, equal but for 1 row."""
        return slice(num_rows * self.rank // self.size, num_rows * (self.rank + 1) // self.size)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over ranks, the same bits on each."""
        if self.size == 1:
            return value
        total = value.detach().clone(memory_format=torch.contiguous_format)
        with _others_alive(self.rank):
            dist.all_reduce(total)
        return total

    def join(self, part: Tensor, num_rows: int) -> Tensor:
        """Join all rows of a tensor from every rank's `rows`; exact, because the other ranks add zeros."""
        if self.size == 1:
            return part
        whole = part.new_zeros(num_rows, *part.shape[1:])
        whole[self.rows(num_rows)] = part
        return self.sum(whole)

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in order of the ranks. No rank goes on before all have called it."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _others_alive(self.rank):
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Value) -> Value:
        """Return the value of rank 0 on every rank."""
        if self.size == 1:
            return value
        values = [value]
        with _others_alive(self.rank):
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def on_main(self, function: Callable[[], Value]) -> Value:
        """Call `function` on rank 0 only; every rank returns its result, which must survive pickling."""
        result: Any = function() if self.is_main else None
        return self.broadcast(result)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Rank 0 runs the body before the others, which then read from the cache. No collective call in the body."""
        if not self.is_main:
            self.gather(None)
        yield
        if self.is_main:
            self.gather(None)

    def main_only(self, callback: Callable[..., None]) -> Callable[..., None]:
        """`callback` on rank 0, a function that does nothing elsewhere: for messages to the user."""
        return callback if self.is_main else lambda *_arguments: None

    def check_equal(self, values: Mapping[str, Tensor], what: str) -> None:
        """Refuse values {module: (r,)} that are not the same bits on all ranks.

        Raises:
            InputError: they have diverged; the first module is named.
        """
        if self.size == 1:
            return
        # Checksums of the bits, not of the numbers: -0 and 0 differ.
        sums = torch.stack([value.view(torch.int32).sum(dtype=torch.int64) for value in values.values()]).tolist()
        sums_by_module = zip(*self.gather(sums), strict=True)
        for module, checksums in zip(values, sums_by_module, strict=True):
            if len(set(checksums)) > 1:
                raise InputError(
                    f"{what}, module {module}",
                    expected="the same bits on every rank",
                    found=f"checksums {', '.join(map(str, checksums))}",
                    fix="run all ranks on the same kind of device with the same versions, and resume the run",
                )

    def check_size(self, most: int, what: str) -> None:
        """Refuse more ranks than the `most` things to share out; `what` says in the InputError what limits them."""
        if self.size > most:
            raise InputError("--nproc-per-node", expected=f"at most {most} processes, {what}", found=str(self.size))


SOLO = World()


@contextmanager
def joined(device: str, *, shards_base: bool = False) -> Iterator[World]:
    """The world that torchrun's environment describes, with its process group open inside; SOLO without torchrun.

    Args:
        device: of the configuration; `auto` and `cuda` become the GPU of this rank's LOCAL_RANK.
        shards_base: only recorded in the world; `shard_base` does it.

    Raises:
        InputError: an incomplete environment, one GPU named for several ranks, fewer GPUs than ranks, or a
            base to be sharded by one process.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        if shards_base:
            raise InputError("model.shard_base", expected="torchrun with 2 or more processes", found="one process")
        yield SOLO
        return
    if missing := [name for name in NEEDED if name not in os.environ]:
        actual = f"WORLD_SIZE={size} without {', '.join(missing)}"
        raise InputError("environment", expected=f"{', '.join(NEEDED)}, as torchrun sets them", found=actual)
    rank_device = _rank_device(device, int(os.environ["LOCAL_RANK"]))
    on_gpu = rank_device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(rank_device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    try:
        yield World(
            rank=dist.get_rank(),
            size=size,
            local_size=int(os.environ["LOCAL_WORLD_SIZE"]),
            device=rank_device,
            shards_base=shards_base,
        )
    finally:
        dist.destroy_process_group()


def _rank_device(device: str, local_rank: int) -> str:
    """The device of the rank with this LOCAL_RANK."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if device not in ("auto", "cuda"):
        raise InputError("--device", expected="auto, cpu or cuda: every process takes one GPU", found=device)
    if local_rank >= torch.cuda.device_count():
        actual = f"{torch.cuda.device_count()} on this machine"
        expected = f"a GPU for each process ({local_rank + 1} or more)"
        raise InputError("--nproc-per-node", expected=expected, found=actual)
    return f"cuda:{local_rank}"


@contextmanager
def _others_alive(rank: int) -> Iterator[None]:
    """Turn the exception of a collective call after a partner process has ended into an InputError of one line."""
    try:
        yield
    except RuntimeError as error:
        raise InputError(
            f"rank {rank}",
            expected="all other processes to go on",
            found="one that stopped",
            fix="see its error; the same command resumes the run",
        ) from error


def transformer_blocks(backbone: nn.Module, asked_by: str) -> list[nn.Module]:
    """The decoder layers of a model without its head, in order.

    Raises:
        InputError: an architecture whose layers are not known; `asked_by` is the setting that needs them.
    """
    blocks: list[nn.Module] = [one for one in backbone.modules() if isinstance(one, GradientCheckpointingLayer)]
    if not blocks:
        found = type(backbone).__name__
        raise InputError(asked_by, expected="a model made of transformers' decoder layers", found=found)
    return blocks


def shard_base(model: PreTrainedModel, device: str) -> None:
    """Spread the weights of a model's blocks over all ranks (FSDP2), in place, and move the model to `device`.

    Inside a block's forward and backward its weights are whole, so that adapters and hooks see what they see without
    sharding. Embeddings and head stay whole on every rank, as does an adapter, which is put on afterwards. One block at
    a time is whole on `device`: a model that was loaded on the CPU may be larger than the device's memory.

    Raises:
        InputError: an architecture whose blocks are not known.
    """
    backbone = model.base_model
    blocks = transformer_blocks(backbone, "model.shard_base")
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block.to(device), mesh=mesh)
    sharded = {parameter for block in blocks for parameter in block.parameters()}
    fully_shard(backbone, mesh=mesh, ignored_params={*backbone.parameters()} - sharded)  # root: it prefetches blocks
    model.to(device)  # pyright: ignore[reportArgumentType] (a decorator hides the signature)
