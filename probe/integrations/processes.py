"""The processes over which a trainer averages the gradient, found by the wrappers of its model.

Taps are averaged over the same processes, never over the whole world, where rollouts or other policies may live:

    DistributedDataParallel     its process group
    fully_shard (FSDP2)         the mesh of its parameters, every dimension in turn
"""

from collections import Counter
from datetime import timedelta

from torch import Tensor, distributed, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from replay_pools.base.errors import InputError

Groups = tuple[ProcessGroup, ...]
# Long enough for a process that loads its model late, much shorter than the timeout of a collective call.
PATIENCE = timedelta(minutes=5)
_met: Counter[tuple[int, ...]] = Counter()  # {ranks: probes that these have started}


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model without DistributedDataParallel and torch.compile.

    Raises:
        InputError: its parameters are neither whole, on one device, nor sharded by `fully_shard` over one mesh.
    """
    while isinstance(model, DistributedDataParallel | OptimizedModule):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
    if (unserved := _unserved(model)) is not None:
        raise InputError(
            "model",
            expected="whole parameters on one device, or sharded by fully_shard (FSDP2)",
            found=unserved,
            fix="use DistributedDataParallel or FSDP2, one process for each GPU, and no device_map",
        )
    return model


def _unserved(model: nn.Module) -> str | None:
    """Return how the parameters are laid out, if taps and `.grad` cannot be read off them."""
    modules, parameters = list(model.modules()), list(model.parameters())
    sharded = [parameter for parameter in parameters if isinstance(parameter, DTensor)]
    units = [module for module in modules if isinstance(module, FSDPModule)]
    devices = sorted({str(parameter.device) for parameter in parameters})
    if isinstance(model, nn.DataParallel):
        return "DataParallel"
    if any(isinstance(module, FullyShardedDataParallel) for module in modules):
        return "FullyShardedDataParallel (FSDP1)"
    if any(hasattr(parameter, "ds_id") for parameter in parameters):
        return "parameters of DeepSpeed ZeRO-3"
    if len(devices) > 1:
        return f"parts on {', '.join(devices)}"
    for parameter in sharded:
        shards = [type(placement) for placement in parameter.placements if type(placement) is not Replicate]
        if shards not in ([], [Shard]):
            return f"parameters sharded as {parameter.placements}"
    if sharded and not units:
        return "parameters of tensor parallelism"
    if len({parameter.device_mesh for parameter in sharded}) > 1:
        return "parameters on several device meshes"
    # With one, `.grad` is no mean over the processes, which taps are.
    groups = [group for unit in units for group in unit._get_fsdp_state()._fsdp_param_groups]
    if any(group.gradient_divide_factor is not None for group in groups):
        return "a gradient divide factor of FSDP2"
    return None


def averaging_groups(model: nn.Module) -> Groups | None:
    """Return the groups over which the gradient of a model is averaged, one after the other; () for one process.

    None: several processes run, and no wrapper says which of them train this model.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return ()
    while isinstance(model, OptimizedModule):
        model = model._orig_mod
    if isinstance(model, DistributedDataParallel):
        assert isinstance(model.process_group, ProcessGroup)
        return (model.process_group,)
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            return tuple(parameter.device_mesh.get_all_groups())
    return () if distributed.get_world_size() == 1 else None


def average(total: Tensor, groups: Groups) -> Tensor:
    """Return the mean over the processes of the groups; `total` is overwritten."""
    for group in groups:
        distributed.all_reduce(total, group=group)
        total /= distributed.get_world_size(group)
    return total


def meet(groups: Groups | None) -> Groups:
    """Wait until every process of the groups has come here as often as this one; return the groups.

    A collective call in place of the store would meet a call of the training if one process alone attaches.

    Raises:
        InputError: no groups are known, or others have not come within PATIENCE.
    """
    if groups is None:
        raise InputError(
            "model",
            expected=f"DistributedDataParallel or fully_shard, since {distributed.get_world_size()} processes run",
            found="a model without",
            fix="give attach the wrapped model",
        )
    for group in groups:
        ranks = tuple(distributed.get_process_group_ranks(group))
        keys = [f"gradient-probe/{','.join(map(str, ranks))}/{_met[ranks]}/{rank}" for rank in ranks]
        own_key = keys[ranks.index(distributed.get_rank())]
        store = _get_default_store()
        store.set(own_key, "attached")
        try:
            store.wait(keys, PATIENCE)
        except RuntimeError as error:
            absent = [rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key])]
            store.delete_key(own_key)
            raise InputError(
                "attach",
                expected=f"a probe in each of the {len(ranks)} processes that train the model",
                found=f"none in rank {', '.join(map(str, absent))} after {PATIENCE.total_seconds():.0f} s",
                fix="attach in every process, with path= in one of them",
            ) from error
        _met[ranks] += 1
    return groups
