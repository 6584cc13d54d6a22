"""probe extract: write directions from contrast pairs to a file; show cards."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from extraction.words import BASES, Adapted, Basis
from probe.cli._frame import echo, echo_json, echo_table, name_option, say
from probe.cli._running import truncation_line
from probe.cli._settings import configured, settings_options, verb
from probe.records.run import elsewhere
from probe.settings.presets import configure, setting_text
from probe.settings.run import ReplayConfig, normaliser
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat
from replay_pools.pool import MANIFEST_NAME, pool_names, resolve_pool

SAMPLED = "sampled"  # suggested name for a pool of the model
DIVISOR = "objective.max_completion_length"  # dr_grpo's


@verb()
@name_option("directions", default="v_hack", show_default=True)
@click.option(
    "--basis",
    default="svd",
    show_default=True,
    type=click.Choice(BASES),
    help="Coordinates of the modules.",
)
@settings_options(
    "replay",
    "model.name: --model",
    "model.template",
    "model.device",
    "intervention.extraction.pairs",
    "intervention.extraction.pairs_map",
    "intervention.extraction.k",
    has_config=True,
)
def extract(name: str, basis: Basis, out: Path, as_json: bool, **settings: Any) -> None:
    """Extract directions from pairs and write out/directions/NAME.safetensors with its card and pair gradients.

    It takes the settings of a replay: model, objective (its normaliser), intervention.extraction.

    Example:  probe extract --pairs builtin --basis svd --k 4 --name v_hack
    """
    from probe.runs.directions import read_card
    from probe.runs.extract import extracted

    config = configured("replay", settings, out)
    if config.model.name is None:
        config = replace(config, model=replace(config.model, name="organism"))
    direction = extracted(config, basis, out, say)
    path, truncation = direction.save(name, out), direction.truncation
    card = read_card(path)
    if as_json:
        echo_json({"path": str(path), **card, "truncation": truncation})
        return
    print_card(path, card)
    if truncation is not None:
        echo(truncation_line(basis, truncation))
    echo(
        f"next: probe replay{_pool(str(config.model.name), out)} --v-hack {name}{_more(config, basis)}{elsewhere(out)}"
    )


def _pool(model: str, out: Path) -> str:
    """Return the option that replays a pool of another model than the organism; print how to make a missing pool."""
    if model == "organism":
        return ""
    for name in pool_names(out):
        manifest = read_json(resolve_pool(name, out) / MANIFEST_NAME)
        if (manifest.get("policy") or {}).get("base_model") == model:
            return f" --replay-dirs {name}"
    generate = f"probe pool generate --model {shlex.quote(model)} --name {SAMPLED}{elsewhere(out)}"
    echo(f"no pool of {model} yet; first: {generate}")
    return f" --replay-dirs {SAMPLED}"


def _more(config: ReplayConfig, basis: Basis) -> str:
    """Return the options that a replay along these directions needs, since they are not the default."""
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


def show_directions(file: Path, as_json: bool) -> None:
    """Print a card, checked against its file, for `probe show FILE`."""
    from probe.runs.directions import card_path, read_card

    card = read_card(file)
    if as_json:
        echo_json(card)
        return
    try:
        print_card(file, card)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a field was rewritten and the hash renewed
        found = f"{type(error).__name__}: {error}"
        fix = "run probe extract again"
        raise InputError(card_path(file), expected="a card that probe extract wrote", found=found, fix=fix) from error


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'not named'} {count}" for name, count in counts.items()) or "none"


def print_card(file: Path, card: Mapping[str, Any]) -> None:
    """Print a card as text."""
    settings, held_out = card["settings"], card["held_out"]
    adapted = Adapted(**card["adapted"]) if card.get("adapted") else None
    echo(f"directions {file} (basis {card['basis']} of {card['fingerprint']['model_id']})")
    rows = [
        ("pairs", card["pairs"]),
        ("pairs used", card["num_pairs"]),
        ("kinds of hack", _counted(card["kinds"])),
        ("modules", card["num_modules"]),
        *([("linear weights with coordinates", f"{adapted.share:.1%}")] if adapted else []),
        ("directions kept", f"{card['num_directions']} of {card['num_modules'] * settings['k']}"),
        ("modules without directions", card["num_empty_modules"]),
        ("method, sides of pairs", f"{settings['method']}, {settings['sides']}"),
        ("k, tau, bottom dropped", f"{settings['k']}, {settings['tau']:g}, {settings['drop_bottom_frac']:g}"),
        ("loss, dtype", f"{settings['loss_type']}, {settings['dtype']}"),
        ("held-out pairs", held_out["num_pairs"]),
    ]
    if held_out["num_pairs"]:
        low, high = held_out["ci95"]
        rows += [
            ("held-out sign accuracy", f"{held_out['accuracy']:.3f} [{low:.3f}, {high:.3f}]"),
            ("held-out mean cosine", f"{held_out['mean_cos']:+.3f}"),
        ]
    else:
        rows.append(("held-out sign accuracy", "unknown: no pair is held out"))
    rows += [
        ("adapted weights sha256", card["fingerprint"]["weights_sha256"][:16]),
        ("file sha256", card["sha256"][:16]),
    ]
    echo_table(("", ""), rows)
    if adapted and adapted.caution:
        echo(f"CAUTION: {adapted.caution}")
