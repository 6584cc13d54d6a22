"""The table `model` of a run: which policy, in which precision, where."""

from dataclasses import dataclass

from extraction.words import Storage
from probe.settings.ranges import at_least
from probe.settings.words import Dtype
from replay_pools.errors import FieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The policy, its precision and its device."""

    name: str | None = None  # organism, a directory, a .gguf file or a hub id; None: the model that the pools name
    adapter: str | None = None  # merged into the weights: `teacher` (of the organism) or a PEFT directory
    dtype: Dtype = "float32"
    device: str = "auto"  # auto (CUDA when present), cpu, cuda, cuda:1, ...
    targets: tuple[str, ...] = ("all",)  # which Linears are adapted: all, attention, mlp, or ends of their paths
    lora_rank: int = 32  # of the arms in the LoRA basis
    svd_rank: int | None = None  # of the arms in the SVD basis: the largest singular triplets; None = all
    svd_storage: Storage = "float32"  # of U and Vh
    dtype_noise: int = 0  # of a replay: rollouts to score again in a higher precision; changes no record
    shard_base: bool = False  # spread the frozen weights over the processes of torchrun (FSDP2)

    def __post_init__(self) -> None:
        """Refuse a rank below 1, and noise that cannot be measured."""
        if not self.targets:
            raise FieldError("targets", "all, attention, mlp, or names of projections", "none")
        at_least(1, lora_rank=self.lora_rank, svd_rank=self.svd_rank)
        at_least(0, dtype_noise=self.dtype_noise)
        if self.dtype_noise and self.shard_base:
            raise FieldError("dtype_noise", "0 with shard_base", self.dtype_noise)
        if self.dtype_noise and self.dtype == "float64":
            raise FieldError("dtype_noise", "a dtype below float64, the highest", "float64")
