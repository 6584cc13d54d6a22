"""probe extract: write directions from contrast pairs to a file; show cards."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from extraction.settings import BASES, Adapted, Basis
from probe.cli._frame import Table, Text, command, name_option, one_of, plain, say
from probe.cli._settings import MODEL, PAIRS, configured, settings_options, verb
from probe.settings.presets import configure, setting_text
from probe.settings.verbs import ReplayConfig, normaliser
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat
from replay_pools.pool import MANIFEST_NAME, pool_names, resolve_pool

SAMPLED = "sampled"  # suggested name for a pool of the model
DIVISOR = "objective.max_completion_length"  # dr_grpo's


@verb()
@name_option("directions", default="v_hack", show_default=True)
@one_of("--basis", BASES, "Coordinates of the modules.", default="svd")
@settings_options("replay", *MODEL, *PAIRS, has_config=True)
def extract(name: str, basis: Basis, out: Path, **settings: Any) -> Text:
    """Extract directions from pairs and write out/directions/NAME.safetensors with its card and pair gradients.

    It takes the settings of a replay: model, objective (its normaliser), intervention.extraction.

    Example:  probe extract --pairs builtin --basis svd --k 4 --name v_hack
    """
    from probe.runs.arm_directions import read_card
    from probe.runs.extract import extracted

    config = configured("replay", settings, out)
    if config.model.name is None:
        config = replace(config, model=replace(config.model, name="organism"))
    direction = extracted(config, basis, out, say)
    path = direction.save(name, out)
    card = read_card(path)
    yield from described_card(path, card)
    model, pool = str(config.model.name), ["--replay-dirs", SAMPLED]
    if model == "organism":
        pool = []
    elif (sampled := next((name for name in pool_names(out) if _model_of(name, out) == model), None)) is not None:
        pool[1] = sampled
    else:
        yield f"no pool of {model} yet; first: {command('pool', 'generate', '--model', model, '--name', SAMPLED)}"
    yield f"next: {command('replay', *pool, '--v-hack', name, *_more(config, basis))}"
    return {"path": str(path), **card}


def _model_of(pool: str, out: Path) -> str | None:
    """Return the model that sampled a pool; None if unknown."""
    return (read_json(resolve_pool(pool, out) / MANIFEST_NAME).get("policy") or {}).get("base_model")


def _more(config: ReplayConfig, basis: Basis) -> list[str]:
    """Return the options that a replay along these directions needs, since they are not the default."""
    from extraction.library import shared_settings

    shared = {*shared_settings(config.intervention.extraction, normaliser(config.objective)), DIVISOR}
    usual, words = flat(asdict(configure("replay"))), []
    for key, value in flat(asdict(config)).items():
        of_directions = key in shared or (key.startswith("model.") and (key, value) != ("model.name", "organism"))
        if of_directions and value != usual[key]:
            words += ["--set", f"{key}={setting_text(value)}"]
    return [*words, *(["--arm", "projected-lora"] if basis == "lora" else [])]


# {line: its key in a card with dots}
CARD = {
    **{"pairs": "pairs", "pairs used": "num_pairs", "modules": "num_modules"},
    **{"directions kept": "num_directions", "modules without directions": "num_empty_modules"},
    **{"method": "settings.method", "sides of pairs": "settings.sides", "k": "settings.k", "tau": "settings.tau"},
    **{"bottom dropped": "settings.drop_bottom_frac", "loss": "settings.loss_type", "dtype": "settings.dtype"},
    **{"held-out pairs": "held_out.num_pairs", "held-out mean cosine": "held_out.mean_cos"},
    **{"adapted weights sha256": "fingerprint.weights_sha256", "file sha256": "sha256"},
}


def described_card(file: Path, card: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield a card as text."""
    values, held_out = flat(card), card["held_out"]
    adapted = Adapted(**card["adapted"]) if card.get("adapted") else None
    yield f"directions {file} (basis {card['basis']} of {card['fingerprint']['model_id']})"
    rows = []
    for line, key in CARD.items():
        value = values.get(key)
        text = f"{value:.3g}" if isinstance(value, float) else plain(value)
        rows.append((line, text[:16] if "sha256" in line else text))
    rows.append(("kinds of hack", ", ".join(f"{name or 'not named'} {n}" for name, n in card["kinds"].items())))
    if adapted:
        rows.append(("linear weights with coordinates", f"{adapted.share:.1%}"))
    accuracy = "unknown: no pair is held out"
    if held_out["num_pairs"]:
        low, high = held_out["ci95"]
        accuracy = f"{held_out['accuracy']:.3f} [{low:.3f}, {high:.3f}]"
    yield Table(("", ""), [*rows, ("held-out sign accuracy", accuracy)])
    if adapted and adapted.caution:
        yield f"CAUTION: {adapted.caution}"
