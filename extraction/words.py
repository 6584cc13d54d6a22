"""What the extraction of directions is told: the words of its options, and its settings. No torch.

To add a basis: a word in `Basis`, and as `adapters.coordinates` says. To add a loss type: see `extraction.loss`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic.dataclasses import dataclass as settings_dataclass

from replay_pools.errors import FieldError
from replay_pools.storage.tables import STRICT, Maybe, setting

Basis = Literal["svd", "lora"]
LossType = Literal["grpo", "dr_grpo", "dapo", "nll"]
Method = Literal["svd", "mean"]  # main directions of the differences of pairs, or their mean alone
# All samples of a pass in one row; the same with one copy of a prompt for all of its samples; a padded row per sample.
Layout = Literal["packed", "shared", "padded"]

BASES: tuple[Basis, ...] = get_args(Basis)
PAIR_GRADIENTS = ".pairs.safetensors"  # ending of the file that stands beside a direction file


def kind_of(flavour: str) -> str:
    """The kind of hack in a pair's flavour: its first word, without those of the body and of the clean completion.

    >>> kind_of("pass/right/honest_tests")
    'pass'
    """
    return flavour.partition("/")[0]


MOST_WEIGHTS = 0.9  # share of the linear weights below which what is left out is said
MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """How much of a model has coordinates.

    Of its linear weights: matrices and stacks of matrices (as of experts), each once, but for embeddings and the head.
    """

    share: float  # in [0, 1]
    left_out: Mapping[str, float]  # {end of a path: share} of the others, the largest first
    linears: Sequence[str] = ()  # those of them that `model.targets` can name

    @property
    def caution(self) -> str:
        """What no gradient, direction or gate sees; "" where it is little."""
        if self.share >= MOST_WEIGHTS:
            return ""
        named = [f"{name} {share:.0%}" for name, share in [*self.left_out.items()][:MOST_NAMED]]
        more = len(self.left_out) - len(named)
        others = ", ".join([*named, *([f"{more} more"] if more else [])])
        targets = ",".join(f'"{name}"' for name in ("all", *self.linears))
        fix = f"; --set 'model.targets=[{targets}]' adapts what can be" if self.linears else ""
        return f"{self}: no gradient, direction or gate sees the others ({others}{fix})"

    def __str__(self) -> str:
        """One clause."""
        return f"{self.share:.1%} of the linear weights have coordinates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser:
    """The weight of a sample in a loss: the same for pair gradients and for the loss that they are compared with."""

    loss_type: LossType = "grpo"
    max_completion_length: int | None = None  # in tokens: what dr_grpo divides by


@settings_dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ExtractionSettings:
    """How directions are extracted from pairs."""

    pairs: str = setting("builtin", "`builtin`, `builtin:MODE`, `builtin:placebo`, `builtin:style`, or a file of pairs")
    pairs_map: Maybe[str] = setting(None, "`FIELD=COLUMN,...` of a file of pairs, as `hack=rejected,clean=chosen`")
    split_seed: Maybe[int] = setting(None, "of the pairs that are held out where a file does not mark them; none: 0")
    leave_out: tuple[str, ...] = setting((), "flavours of pairs, by their first word, that are not extracted from")
    held_out: Maybe[str] = setting(None, "pairs whose held-out ones measure; none: those of `pairs`")
    method: Method = setting("svd", "main directions of the pair differences, or that of their mean, with `k` 1")
    k: int = setting(4, "directions in a module", ge=1)
    tau: float = setting(0.0, "directions below this share of the module's largest are dropped", ge=0, le=1)
    drop_bottom_frac: float = setting(
        0.25, "share of all directions that is dropped, lowest singular values first", ge=0, lt=1
    )
    tokens_per_batch: Maybe[int] = setting(
        None, "tokens of one forward and backward pass, of pairs and of steps; none: what fits the memory", ge=1
    )

    def __post_init__(self) -> None:
        """Refuse directions that the method mean does not have."""
        if self.method == "mean" and self.k != 1:
            raise FieldError("k", "1 with the method mean, which has one direction in a module", self.k)
