"""The words that extraction's options accept, without torch, so that help texts are quick."""

from typing import Literal, get_args

Basis = Literal["svd", "lora"]
LossType = Literal["grpo", "dr_grpo", "bnpo", "dapo", "nll"]
Layout = Literal["packed", "padded"]  # how the samples of one pass lie before the model

BASES: tuple[Basis, ...] = get_args(Basis)
LOSS_TYPES: tuple[LossType, ...] = get_args(LossType)
