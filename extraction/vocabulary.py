"""The words that extraction's options accept: bases, loss types, storages. Imports no torch, so `--help` is quick.

To add a basis: a subclass of `extraction.adapters.interface.Coordinates`, a branch in `adapters.coordinates.attach` and
in `extraction.library.attach_basis`, a word in `Basis`. To add a loss type: see `extraction.loss`.
"""

from typing import Literal, get_args

Basis = Literal["svd", "lora"]
LossType = Literal["grpo", "dr_grpo", "bnpo", "dapo", "nll"]
Layout = Literal["packed", "padded"]  # all samples of a pass in one row, or one padded row per sample
Storage = Literal["float32", "bfloat16"]  # dtype of the factors U and Vh; float32 means float64 in a float64 model

BASES: tuple[Basis, ...] = get_args(Basis)
LOSS_TYPES: tuple[LossType, ...] = get_args(LossType)
STORAGES: tuple[Storage, ...] = get_args(Storage)
