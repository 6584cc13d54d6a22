"""probe extract: directions from contrast pairs, as a file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from extraction.vocabulary import BASES, Basis, LossType, Storage
from probe.cli._frame import echo_json, elsewhere, json_option, name_option, out_option
from probe.cli._progress import say
from probe.cli._shared_options import basis_options, extraction_options, model_options, rounding_line
from probe.cli.directions import print_card
from replay_pools.errors import InputError

if TYPE_CHECKING:
    from extraction.library import ExtractionSettings


@click.command()
@name_option("directions", default="v_hack", show_default=True)
@click.option("--model", default="organism", show_default=True, help="organism, a directory, a .gguf file or a hub id.")
@click.option("--basis", default="svd", show_default=True, type=click.Choice(BASES), help="Module coordinates.")
@extraction_options
@basis_options
@model_options
@out_option
@json_option
def extract(
    name: str,
    model: str,
    pairs: str,
    basis: Basis,
    k: int,
    tau: float,
    drop_bottom_frac: float,
    loss_type: LossType,
    max_completion_length: int | None,
    tokens_per_batch: int | None,
    lora_rank: int,
    svd_rank: int | None,
    svd_storage: Storage,
    dtype: str,
    device: str,
    out: Path,
    as_json: bool,
) -> None:
    """Extract directions from pairs and write out/directions/NAME.safetensors, card and pair gradients beside it.

    Example:  probe extract --pairs builtin --basis svd --k 4 --name v_hack
    """
    from extraction.directions import load_directions, save_directions, save_pair_gradients
    from extraction.library import DirectionLibrary, ExtractionSettings, attach_basis, pairs_path
    from probe.runs.card import write_card
    from replay_pools.policy import load_policy

    policy = load_policy(model, dtype=dtype, device=device)
    coordinates = attach_basis(
        policy, basis, cache_dir=out / "cache", lora_rank=lora_rank, svd_rank=svd_rank, svd_storage=svd_storage
    )
    settings = ExtractionSettings(
        pairs=pairs,
        k=k,
        tau=tau,
        drop_bottom_frac=drop_bottom_frac,
        loss_type=loss_type,
        max_completion_length=max_completion_length,
        tokens_per_batch=tokens_per_batch,
    )
    library = DirectionLibrary(policy, coordinates, settings, cache_dir=out / "cache", say=say)
    directions = library.v_hack
    path = out / "directions" / f"{name}.safetensors"
    if path.exists() and load_directions(path).metadata != directions.metadata:
        fix = "use another --name, or remove the file"
        raise InputError(path, expected="no file, or the same directions", found="others", fix=fix)
    save_pair_gradients(pairs_path(path), library.pair_gradients)
    save_directions(path, directions)
    card = write_card(path, directions, library.pair_gradients)
    rounding = coordinates.rounding()
    if as_json:
        echo_json({"path": str(path), **card, "rounding": rounding})
        return
    print_card(path, card)
    if rounding is not None:
        click.echo(rounding_line(basis, rounding))
    click.echo(f"next: probe replay --v-hack {name}{_more(model, basis, settings)}{elsewhere(out)}")


def _more(model: str, basis: str, settings: "ExtractionSettings") -> str:
    """What a replay along these directions must be told, because it is not the default."""
    from extraction.library import SHARED_WITH_CONTROLS

    plain = type(settings)()
    given = {name: getattr(settings, name) for name in SHARED_WITH_CONTROLS}
    parts = [f" --{name.replace('_', '-')} {value}" for name, value in given.items() if value != getattr(plain, name)]
    parts += [f" --model {model}"] if model != "organism" else []
    return "".join([*parts, *([" --arm projected-lora"] if basis == "lora" else [])])
