"""Options that verbs share: of the model, of the extraction of directions, and the config of a run to repeat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from extraction.vocabulary import LOSS_TYPES
from replay_pools.errors import InputError

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

_MODEL_OPTIONS = (
    click.option(
        "--device",
        default="auto",
        show_default=True,
        help="auto (CUDA when present), cpu, cuda, cuda:1, ...",
    ),
    click.option(
        "--dtype",
        default="float32",
        show_default=True,
        type=click.Choice(["float32", "bfloat16", "float64"]),
        help="Of the weights; cosines and adapters stay in float32.",
    ),
)


def model_options(function: AnyFunction) -> AnyFunction:
    """`--dtype` and `--device`."""
    return _with(_MODEL_OPTIONS, function)


def config_option(function: AnyFunction) -> AnyFunction:
    """`--config FILE` -> `config_file: Path | None`."""
    kind = click.Path(path_type=Path)
    return click.option("--config", "config_file", type=kind, help="config.json of a run to repeat.")(function)


def shard_base_option(function: AnyFunction) -> AnyFunction:
    """`--shard-base` -> `shard_base: bool`."""
    text = "Under torchrun: spread the frozen weights over the processes (FSDP2)."
    return click.option("--shard-base", is_flag=True, help=text)(function)


def refuse_overrides(ctx: click.Context) -> None:
    """--config holds every setting of the run: another option beside it would be ignored, so it is refused."""
    allowed = {"config_file", "name", "out", "as_json"}
    given = [p for p in ctx.params if ctx.get_parameter_source(p) is ParameterSource.COMMANDLINE and p not in allowed]
    if given:
        raise InputError("--config", expected="no other setting beside it", found=", ".join(sorted(given)))


AUTO = "auto"


class _TokensType(click.ParamType):
    """A positive number, or `auto` -> None."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        return None if value in (None, AUTO) else click.IntRange(1).convert(value, param, ctx)


_EXTRACTION_OPTIONS = (
    click.option(
        "--tokens-per-batch",
        default=AUTO,
        show_default=True,
        type=_TokensType(),
        help="Tokens of one forward and backward; auto = what fits the free memory.",
    ),
    click.option(
        "--max-completion-length",
        type=click.IntRange(1),
        help="Tokens, the divisor of dr_grpo; replay takes it from the pools.",
    ),
    click.option(
        "--loss-type",
        default="grpo",
        show_default=True,
        type=click.Choice(LOSS_TYPES),
        help="Normaliser, of the loss and of the pair gradients alike.",
    ),
    click.option(
        "--drop-bottom-frac",
        default=0.25,
        show_default=True,
        type=click.FloatRange(0, 1, max_open=True),
        help="Noise floor: drop directions below this quantile of S over all modules.",
    ),
    click.option(
        "--tau",
        default=0.0,
        show_default=True,
        type=click.FloatRange(0, 1),
        help="Drop directions with S_i / S_0 below.",
    ),
    click.option("--k", default=4, show_default=True, type=click.IntRange(1), help="Directions a module."),
    click.option(
        "--pairs", default="builtin", show_default=True, help="builtin, builtin:MODE, builtin:placebo or a file."
    ),
)


def extraction_options(function: AnyFunction) -> AnyFunction:
    """The fields of ExtractionSettings: `--pairs --k --tau --drop-bottom-frac --loss-type --max-completion-length
    --tokens-per-batch`.
    """
    return _with(_EXTRACTION_OPTIONS, function)


def _with(options: tuple[Callable[[AnyFunction], AnyFunction], ...], function: AnyFunction) -> AnyFunction:
    for option in options:
        function = option(function)
    return function
