"""probe extract: directions from contrast pairs, as a file."""

import shlex
from dataclasses import asdict, replace
from pathlib import Path

import click

from extraction.words import BASES, Basis
from probe.cli._frame import echo, echo_json, json_option, name_option, out_option
from probe.cli._output import rounding_line
from probe.cli._progress import say
from probe.cli._settings import SettingsCommand, run_config, settings_options
from probe.cli.directions import print_card
from probe.records.root import elsewhere
from probe.settings.presets import configure, setting_text
from probe.settings.run import ReplayConfig, normaliser
from replay_pools.errors import InputError
from replay_pools.storage.lock import locked
from replay_pools.storage.tables import flat

DIVISOR = "objective.max_completion_length"  # of dr_grpo


@click.command(cls=SettingsCommand)
@name_option("directions", default="v_hack", show_default=True)
@click.option("--basis", default="svd", show_default=True, type=click.Choice(BASES), help="Module coordinates.")
@settings_options(
    "replay",
    "model.name: --model",
    "model.device",
    "intervention.extraction.pairs",
    "intervention.extraction.pairs_map",
    "intervention.extraction.k",
    has_config=True,
)
@out_option
@json_option
@click.pass_context
def extract(
    ctx: click.Context,
    name: str,
    basis: Basis,
    out: Path,
    as_json: bool,
) -> None:
    """Extract directions from pairs and write out/directions/NAME.safetensors, card and pair gradients beside it.

    Settings are those of a replay along the directions: model, objective (its normaliser), intervention.extraction.

    Example:  probe extract --pairs builtin --basis svd --k 4 --name v_hack
    """
    from extraction.directions import load_directions, save_directions, save_pair_gradients
    from extraction.library import DirectionLibrary, attach_basis, check_pairs, pairs_path
    from extraction.pairs import selected_pairs
    from probe.runs.assemble import configured_policy
    from probe.runs.direction_files import write_card
    from replay_pools.vocabulary import load_vocabulary

    config = run_config(ctx, "replay", out)
    if config.model.name is None:
        config = replace(config, model=replace(config.model, name="organism"))
    model, extraction = config.model, config.intervention.extraction
    # All that is cheap to check comes before the weights and their SVDs, which may take an hour.
    for sentence in check_pairs(load_vocabulary(str(model.name)), selected_pairs(extraction), extraction.k):
        say(sentence)
    path = out / "directions" / f"{name}.safetensors"
    with locked(path):
        stored = load_directions(path).metadata if path.exists() else None
        policy = configured_policy(model, out / "cache")
        coordinates = attach_basis(
            policy,
            basis,
            cache_dir=out / "cache",
            lora_rank=model.lora_rank,
            svd_rank=model.svd_rank,
            svd_storage=model.svd_storage,
            targets=model.targets,
        )
        library = DirectionLibrary(
            policy, coordinates, extraction, normaliser(config.objective), cache_dir=out / "cache", say=say
        )
        directions = library.v_hack
        if stored not in (None, directions.metadata):
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
        echo(rounding_line(basis, rounding))
    echo(f"next: probe replay --v-hack {name}{_more(config, basis)}{elsewhere(out)}")


def _more(config: ReplayConfig, basis: Basis) -> str:
    """What a replay along these directions must be told, because it is not the default."""
    from extraction.library import shared_settings

    shared = {*shared_settings(config.intervention.extraction, normaliser(config.objective)), DIVISOR}
    usual, parts = flat(asdict(configure("replay"))), []
    for key, value in flat(asdict(config)).items():
        of_directions = key in shared or (key.startswith("model.") and (key, value) != ("model.name", "organism"))
        if of_directions and value != usual[key]:
            parts.append(f"--set {shlex.quote(f'{key}={setting_text(value)}')}")
    if basis == "lora":
        parts.append("--arm projected-lora")
    return "".join(f" {part}" for part in parts)
