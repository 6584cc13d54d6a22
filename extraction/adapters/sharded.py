"""Parameters that FSDP2 has spread over processes (DTensors), as whole tensors and back; others pass as they are.

`whole` gathers: all processes of the mesh must call it equally often.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """The values of a tensor, detached; those of a sharded one in memory of their own."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def spread_as(like: Tensor, values: Tensor) -> Tensor:
    """`values`, which every process holds whole, spread over processes as `like` is."""
    if not isinstance(like, DTensor):
        return values
    # None: every process cuts its part out of what it holds.
    return distribute_tensor(values.to(like.dtype), like.device_mesh, like.placements, src_data_rank=None)
