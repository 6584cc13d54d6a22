"""Options and settings of the extraction of directions, and the names of their files. No torch.

To add a basis: a word in `Basis`, and as `adapters.frames` says. To add a loss type: see `extraction.loss_weights`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic.dataclasses import dataclass as settings_dataclass

from replay_pools.base.errors import InputError, unknown_name
from replay_pools.base.files import by_name
from replay_pools.base.tables import STRICT, Maybe, setting

Basis = Literal["svd", "lora"]
LossType = Literal["grpo", "dr_grpo", "dapo", "nll"]
Method = Literal["svd", "mean"]  # main directions of the pair differences, or the direction of their mean
Sides = Literal["mean", "unit"]  # each side of a pair: its loss gradient, or that gradient at norm 1
# All samples of a pass in one row; the same with one copy of each prompt; one padded row per sample.
Layout = Literal["packed", "shared", "padded"]

BASES: tuple[Basis, ...] = get_args(Basis)
PAIR_GRADIENTS = ".pairs.safetensors"  # suffix of the pair gradients' file, next to the direction file
OUT = Path("out")  # relative to the working directory


def kind_of(flavour: str) -> str:
    """Return the kind of hack that a pair's flavour begins with.

    >>> kind_of("pass/right/honest_tests")
    'pass'
    """
    return flavour.partition("/")[0]


WARN_SHARE = 0.9  # share of the linear weights below which a caution names the rest
MAX_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """The share of a model's linear weights that have coordinates.

    Linear weights are matrices and stacks of matrices (experts), each once, without embeddings and the head.
    """

    share: float  # in [0, 1]
    left_out: Mapping[str, float]  # {end of a path: share} of the rest, the largest first
    linears: Sequence[str] = ()  # names among the rest that `model.targets` can take

    @property
    def caution(self) -> str:
        """A sentence on the weights that no gradient, direction or projection sees; "" if they are few."""
        if self.share >= WARN_SHARE:
            return ""
        named = [f"{name} {share:.0%}" for name, share in [*self.left_out.items()][:MAX_NAMED]]
        more = len(self.left_out) - len(named)
        others = ", ".join([*named, *([f"{more} more"] if more else [])])
        targets = ",".join(f'"{name}"' for name in ("all", *self.linears))
        fix = f"; --set 'model.targets=[{targets}]' adapts more" if self.linears else ""
        return f"{self}: no gradient, direction or projection sees the rest ({others}{fix})"

    def __str__(self) -> str:
        """Return one clause."""
        return f"{self.share:.1%} of the linear weights have coordinates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser:
    """The weight of a sample in a loss, the same for pair gradients and for the loss they are compared with."""

    loss_type: LossType = "grpo"
    max_completion_length: int | None = None  # tokens that dr_grpo divides by


@settings_dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ExtractionSettings:
    """Settings of the extraction of directions from pairs."""

    pairs: str = setting("builtin", "`builtin`, `builtin:MODE`, `builtin:placebo`, `builtin:style`, or a file of pairs")
    pairs_map: Maybe[str] = setting(None, "columns of a file of pairs, as `hack=rejected,clean=chosen`")
    leave_out: tuple[str, ...] = setting(
        (), "kinds of pairs (first word of the flavour) to leave out of the extraction"
    )
    held_out: Maybe[str] = setting(None, "another source of held-out pairs; none: `pairs`")
    method: Method = setting(
        "svd", "`svd`: main directions of the pair differences; `mean`: the direction of their mean (`k` 1)"
    )
    sides: Sides = setting("mean", "gradient of each side: `mean` as in the loss, `unit` scaled to norm 1 in all")
    k: int = setting(4, "directions in a module", ge=1)
    tau: float = setting(0.0, "drop directions below this share of the module's largest singular value", ge=0, le=1)
    drop_bottom_frac: float = setting(0.25, "share of all directions to drop, lowest singular values first", ge=0, lt=1)
    tokens_per_batch: Maybe[int] = setting(
        None, "tokens in one forward and backward pass; none: what fits the memory", ge=1
    )

    def __post_init__(self) -> None:
        """Refuse more directions than the method mean has."""
        if self.method == "mean" and self.k != 1:
            raise InputError("k", expected="1 with the method mean: a module has one direction", found=str(self.k))


def resolve_directions(file: str | Path, out: Path = OUT) -> Path:
    """Return the path of a direction file, from a path or a name in `out`/directions.

    Raises:
        InputError: no such file; the message lists the names in `out`/directions.
    """
    file, folder = Path(file), out / "directions"
    path = by_name(file, folder / f"{file.name}.safetensors")
    if path.is_file():
        return path
    expected = f"a direction file, or the name of one in {folder}"
    raise unknown_name(
        f"directions {file}", file.name, direction_names(out), expected=expected, fix="run probe extract"
    )


def direction_names(out: Path) -> list[str]:
    """Return the sorted names of the direction files in `out`/directions."""
    files = (out / "directions").glob("*.safetensors")
    return sorted(path.stem for path in files if not path.name.endswith(PAIR_GRADIENTS))
