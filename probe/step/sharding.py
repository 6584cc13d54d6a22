"""A frozen base whose weights are spread over the ranks: FSDP2, block by block.

Every forward gathers a block's weights before it and lets go of them after it, and so does every backward: memory is
bought with communication, most dearly while sampling, where every token needs all weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTuner
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from replay_pools.errors import InputError


def shard_base(model: PeftModel, device: str) -> None:
    """Spread the frozen weights of a model's blocks over all ranks (FSDP2), in place; all of it ends on `device`.

    Inside a block's forward and backward its weights are whole, so that adapters and hooks see what they see without
    sharding. Embeddings, head and what the adapter brought stay whole on every rank. Rank by rank one block at a time
    is whole on `device`: the model may be larger than that, where it was loaded into the memory of the host.

    Raises:
        InputError: an architecture whose blocks are not known.
    """
    base = model.get_base_model()
    assert isinstance(base, PreTrainedModel)
    backbone = base.base_model
    blocks = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not blocks:
        raise InputError("--shard-base", expected="a model made of transformers' blocks", found=type(base).__name__)
    assert isinstance(model.base_model, BaseTuner)
    whole = {parameter for name, parameter in base.named_parameters() if model.base_model.prefix in name}
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block.to(device), mesh=mesh, ignored_params=whole)
    sharded = {parameter for block in blocks for parameter in block.parameters()}
    rest = {*backbone.parameters()} - sharded
    fully_shard(backbone, mesh=mesh, ignored_params=whole | rest)  # the root, which prefetches the blocks
    model.to(device)


@contextmanager
def whole_weights(model: nn.Module, layer: nn.Module) -> Iterator[None]:
    """While open, the block around `layer` holds its whole weights, where they are sharded; all ranks come here."""
    blocks = [block for block in model.modules() if isinstance(block, FSDPModule) and layer in {*block.modules()}]
    for block in blocks:
        block.unshard()
    try:
        yield
    finally:
        for block in blocks:
            block.reshard()
