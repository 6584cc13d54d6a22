"""The words that extraction's options accept, without torch, so that help texts are quick."""

from typing import Literal, get_args

Basis = Literal["svd", "lora"]
LossType = Literal["grpo", "dr_grpo", "bnpo", "dapo", "nll"]
Layout = Literal["packed", "padded"]  # how the samples of one pass lie before the model
Storage = Literal["float32", "bfloat16"]  # of the factors U and Vh; float32 is float64 in a float64 model

BASES: tuple[Basis, ...] = get_args(Basis)
LOSS_TYPES: tuple[LossType, ...] = get_args(LossType)
STORAGES: tuple[Storage, ...] = get_args(Storage)
