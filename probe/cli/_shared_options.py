"""Options that verbs share: of the model, of the extraction of directions, of trackers, and the config of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from extraction.vocabulary import LOSS_TYPES, STORAGES
from probe.cli._frame import Real
from probe.records.tracking import TRACKERS
from replay_pools.errors import InputError
from replay_pools.files import read_json

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


_BASIS_OPTIONS = (
    click.option(
        "--svd-storage",
        default="float32",
        show_default=True,
        type=click.Choice(STORAGES),
        help="Of U and Vh in the SVD basis; bfloat16 halves their memory, and what it costs is measured.",
    ),
    click.option(
        "--svd-rank",
        type=click.IntRange(1),
        help="Of the SVD basis: so many of the largest singular triplets of each module. Default: all.",
    ),
    click.option("--lora-rank", default=32, show_default=True, type=click.IntRange(1), help="Of the LoRA basis."),
)


def basis_options(function: AnyFunction) -> AnyFunction:
    """`--lora-rank --svd-rank --svd-storage`."""
    return _with(_BASIS_OPTIONS, function)


def rounding_line(basis: str, rounding: dict[str, Any]) -> str:
    """What `Coordinates.rounding` measured, for a reader."""
    error = rounding["cosine_error"]
    return (
        f"factors of {basis} in {rounding['storage']}: orthonormal up to {rounding['orthonormality']:.1e}; cosine of a "
        f"module's trial gradient with the exact one 1 - {error['median']:.1e} (median), 1 - {error['max']:.1e} (worst)"
    )


def config_option(function: AnyFunction) -> AnyFunction:
    """`--config FILE` -> `config_file: Path | None`."""
    kind = click.Path(path_type=Path)
    return click.option("--config", "config_file", type=kind, help="config.json of a run to repeat whole.")(function)


def track_option(function: AnyFunction) -> AnyFunction:
    """`--track TRACKER` -> `track: tuple[str, ...]`, empty by default."""
    return click.option(
        "--track",
        multiple=True,
        type=click.Choice(TRACKERS),
        help="Show the records in a tracker too, locally (out/tracking/); repeatable. Default: none.",
    )(function)


def token_attribution_option(function: AnyFunction) -> AnyFunction:
    """`--token-attribution [N|all]` -> `token_attribution: int | None`: so many steps, None for all, 0 by default."""
    return click.option(
        "--token-attribution",
        is_flag=False,
        flag_value=ALL,
        default=0,
        show_default="none",
        type=NumberOr(ALL, least=0),
        help="Record each token's share of its rollout's cosine, in the first N steps (no N: all), for probe report.",
    )(function)


def shard_base_option(function: AnyFunction) -> AnyFunction:
    """`--shard-base` -> `shard_base: bool`."""
    text = "Under torchrun: spread the frozen weights over the processes (FSDP2)."
    return click.option("--shard-base", is_flag=True, help=text)(function)


def stored_config(ctx: click.Context, path: Path) -> Any:
    """What `--config` repeats: the verb's own part of a run's config.json.

    It holds every setting of the run: another option beside it would be ignored, so it is refused.

    Raises:
        InputError: another setting is given, or the file is none of a run of this verb.
    """
    allowed = {"config_file", "name", "out", "as_json", "url", "track", "dry_run"}
    given = [p for p in ctx.params if ctx.get_parameter_source(p) is ParameterSource.COMMANDLINE and p not in allowed]
    if given:
        raise InputError("--config", expected="no other setting beside it", found=", ".join(sorted(given)))
    row, verb = read_json(path), str(ctx.info_name)
    if not isinstance(row, dict) or verb not in row:
        found = f"that of probe {row['verb']}" if isinstance(row, dict) and "verb" in row else "none"
        raise InputError(path, expected=f"the config.json of a run of probe {verb}", found=found)
    return row[verb]


AUTO, ALL = "auto", "all"


class NumberOr(click.ParamType):
    """A whole number from `least` up, or `word` -> None."""

    def __init__(self, word: str, *, least: int = 1) -> None:
        self.name, self._word, self._least = f"N|{word}", word, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """The number."""
        return None if value in (None, self._word) else click.IntRange(self._least).convert(value, param, ctx)


_EXTRACTION_OPTIONS = (
    click.option(
        "--tokens-per-batch",
        default=AUTO,
        show_default=True,
        type=NumberOr(AUTO),
        help="Tokens of one forward and backward; auto = by the memory of the device.",
    ),
    click.option(
        "--max-completion-length",
        type=click.IntRange(1),
        help="In tokens: what dr_grpo divides by. Default in a replay: the pools' generation limit.",
    ),
    click.option(
        "--loss-type",
        default="grpo",
        show_default=True,
        type=click.Choice(LOSS_TYPES),
        help="Normaliser of the loss, and of the pair gradients alike.",
    ),
    click.option(
        "--drop-bottom-frac",
        default=0.25,
        show_default=True,
        type=Real(0, 1, max_open=True),
        help="Noise floor: drop the directions with the lowest singular values S, this share over all modules.",
    ),
    click.option(
        "--tau",
        default=0.0,
        show_default=True,
        type=Real(0, 1),
        help="Drop directions with S_i / S_0 below this, in each module.",
    ),
    click.option("--k", default=4, show_default=True, type=click.IntRange(1), help="Directions in a module."),
    click.option(
        "--pairs",
        default="builtin",
        show_default=True,
        help="builtin (mode run_tests), builtin:MODE, builtin:placebo, or a .jsonl file of pairs.",
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
