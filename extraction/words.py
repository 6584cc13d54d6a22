"""What the extraction of directions is told: the words of its options, and its settings. No torch.

To add a basis: a subclass of `extraction.adapters.interface.Coordinates`, a branch in `adapters.coordinates.attach` and
in `extraction.library.attach_basis`, a word in `Basis`. To add a loss type: see `extraction.loss`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from replay_pools.errors import FieldError

Basis = Literal["svd", "lora"]
LossType = Literal["grpo", "dr_grpo", "dapo", "nll"]
Method = Literal["svd", "mean"]  # main directions of the differences of pairs, or their mean alone
Half = Literal["first", "second"]
Layout = Literal["packed", "padded"]  # all samples of a pass in one row, or one padded row per sample
Storage = Literal["float32", "bfloat16"]  # dtype of the factors U and Vh; float32 means float64 in a float64 model

BASES: tuple[Basis, ...] = get_args(Basis)
LOSS_TYPES: tuple[LossType, ...] = get_args(LossType)
STORAGES: tuple[Storage, ...] = get_args(Storage)
PAIR_GRADIENTS = ".pairs.safetensors"  # ending of the file that stands beside a direction file


def kind_of(flavour: str) -> str:
    """The kind of hack in a pair's flavour: its first word, without those of the body and of the clean completion.

    >>> kind_of("pass/right/honest_tests")
    'pass'
    """
    return flavour.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser:
    """The weight of a sample in a loss: the same for pair gradients and for the loss that they are compared with."""

    loss_type: LossType = "grpo"
    max_completion_length: int | None = None  # in tokens: what dr_grpo divides by


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionSettings:
    """How directions are extracted from pairs."""

    pairs: str = "builtin"  # builtin, builtin:MODE, builtin:placebo, builtin:style, or a file of pairs
    pairs_map: str | None = None  # FIELD=COLUMN,... of a file of pairs, where its format does not say it
    split_seed: int | None = None  # of the pairs held out where a file does not mark them; None: 0
    leave_out: tuple[str, ...] = ()  # flavours, by their first word, that are not extracted from
    half: Half | None = None  # of the pairs, in their order: extract from these alone
    held_out: str | None = None  # a source of pairs whose held-out ones replace those of `pairs`
    method: Method = "svd"
    k: int = 4  # directions in a module; 1 with the method `mean`
    tau: float = 0.0  # directions with S_i / S_0 below it are dropped, in each module
    drop_bottom_frac: float = 0.25  # of the directions with the lowest S over all modules: a noise floor
    tokens_per_batch: int | None = None  # of a forward and backward; None: what fits the memory

    def __post_init__(self) -> None:
        """Refuse numbers that no extraction can use."""
        if self.k < 1:
            raise FieldError("k", "at least 1 direction", self.k)
        if self.method == "mean" and self.k != 1:
            raise FieldError("k", "1 with the method mean, which has one direction in a module", self.k)
        if not (0 <= self.tau <= 1 and 0 <= self.drop_bottom_frac < 1):
            actual = f"{self.tau}, {self.drop_bottom_frac}"
            raise FieldError("tau, drop_bottom_frac", "shares in [0, 1] and [0, 1)", actual)
        if self.tokens_per_batch is not None and self.tokens_per_batch < 1:
            raise FieldError("tokens_per_batch", "at least 1 token, or none", self.tokens_per_batch)
