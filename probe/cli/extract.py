"""probe extract: directions from contrast pairs, as a file."""

from pathlib import Path
from typing import Any

import click

from extraction.vocabulary import BASES, Basis, LossType, Storage
from probe.cli._frame import echo_json, echo_table, json_option, name_option, out_option
from probe.cli._progress import say
from probe.cli._shared_options import basis_options, extraction_options, model_options, rounding_line


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
    """Extract directions from pairs and write out/directions/NAME.safetensors, with the pair gradients beside it.

    Example:  probe extract --pairs builtin --basis svd --k 4 --name v_hack
    """
    from extraction.directions import save_directions, save_pair_gradients, sign_accuracy
    from extraction.library import DirectionLibrary, ExtractionSettings, attach_basis, pairs_path
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
    save_pair_gradients(pairs_path(path), library.pair_gradients)
    save_directions(path, directions)
    num_pairs = directions.metadata["num_pairs"]
    margins = [int(margin) for votes in directions.votes.values() for margin in votes]
    vote_p = [p for values in directions.metadata["vote_p"].values() for p in values]
    card = {
        "path": str(path),
        "basis": basis,
        "num_pairs": num_pairs,
        "num_modules": len(directions.vectors),
        "num_directions": directions.num_directions(),
        "noise_floor": directions.metadata["noise_floor"],
        "median_vote_margin": sorted(margins)[len(margins) // 2] if margins else None,
        "frac_votes_p05": sum(p < 0.05 for p in vote_p) / max(len(vote_p), 1),
        "held_out": sign_accuracy(library.pair_gradients, directions),
        "rounding": coordinates.rounding(),
    }
    if as_json:
        echo_json(card)
    else:
        _print_card(card)


def _print_card(card: dict[str, Any]) -> None:
    click.echo(f"directions {card['path']} (basis {card['basis']})")
    held_out = card["held_out"]
    rows = [
        ("pairs used", card["num_pairs"]),
        ("modules", card["num_modules"]),
        ("directions kept", card["num_directions"]),
        ("noise floor (singular value)", f"{card['noise_floor']:.3g}"),
        ("median vote margin", card["median_vote_margin"]),
        ("directions with vote p < .05", f"{card['frac_votes_p05']:.0%}"),
        ("held-out pairs", held_out["num_pairs"]),
    ]
    if held_out["num_pairs"]:
        low, high = held_out["ci95"]
        rows += [
            ("held-out sign accuracy", f"{held_out['accuracy']:.3f} [{low:.3f}, {high:.3f}]"),
            ("held-out mean cosine", f"{held_out['mean_cos']:+.3f}"),
        ]
    echo_table(("", ""), rows)
    if card["rounding"]:
        click.echo(rounding_line(card["basis"], card["rounding"]))
