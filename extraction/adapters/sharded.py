"""Parameters that FSDP2 has spread over processes (DTensors), as whole tensors and back; others pass unchanged."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """Return the values of a tensor, detached; a sharded one is gathered, which all processes of the mesh must do."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def spread_as(like: Tensor, values: Tensor) -> Tensor:
    """Spread `values`, which every process holds whole, over processes like the tensor `like`."""
    if not isinstance(like, DTensor):
        return values
    # src_data_rank None: every process cuts its part out of its copy.
    return distribute_tensor(values.to(like.dtype), like.device_mesh, like.placements, src_data_rank=None)
