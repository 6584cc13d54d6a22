"""Accelerators by name, for hours that are counted before a run: `--gpu`. No torch. To add one: a row in `GPUS`."""

from collections.abc import Mapping
from dataclasses import dataclass

from probe.settings.words import Dtype

# Shares of the peak. Measured on an H200 with Qwen3-4B's shape (spec/guide/processes.md#on-a-gpu):
PASSES = 0.3  # gradients, bfloat16
SVD_SHARE = 0.02  # all triplets, float32
# Assumed of a server:
SAMPLING = 0.4
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Peak speeds of one accelerator, or measured ones of a CPU."""

    name: str
    flops: Mapping[Dtype, float]  # a second, of dense products
    bandwidth: float  # bytes a second
    memory: int | None = None  # bytes; None: of a CPU
    svd_share: float = SVD_SHARE

    def seconds(self, flops: float, dtype: Dtype, share: float = PASSES) -> float:
        """Of so many operations."""
        return flops / (self.flops[dtype] * share)

    @property
    def source(self) -> str:
        """Where the speeds come from, and what is assumed."""
        of_speed = "as an H200 reached of the vendor's peak" if self.memory else "assumed of the speed of a product now"
        return (
            f"counted for one {self.name}; {of_speed}: {PASSES:.0%} in passes, {self.svd_share:.0%} in SVDs; "
            f"assumed of a server: {SAMPLING:.0%} in sampling; "
            "nothing for the host, the grader and a step's check and merge"
        )


def _gpu(name: str, bfloat16: float, float32: float, float64: float, terabytes: float, gib: int) -> Machine:
    """From TFLOP/s without sparsity, TB/s and GiB."""
    flops: dict[Dtype, float] = {"bfloat16": bfloat16 * 1e12, "float32": float32 * 1e12, "float64": float64 * 1e12}
    return Machine(name=name, flops=flops, bandwidth=terabytes * 1e12, memory=gib * GIB)


# Of the data sheets; float32 without TF32, which torch does not use by default.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", 312, 19.5, 9.7, 2.04, 80),
        _gpu("h100", 989, 67, 34, 3.35, 80),
        _gpu("h200", 989, 67, 34, 4.8, 141),
        _gpu("b200", 2250, 80, 40, 8.0, 180),
        _gpu("l40s", 362, 91.6, 1.4, 0.86, 48),
        _gpu("mi300x", 1307, 163, 81.7, 5.3, 192),
    )
}
