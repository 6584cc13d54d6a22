"""`probe train` once more with the settings of a run but for some, as a line that can be run."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from probe.settings.presets import PRESETS, configure, preset_names, setting_text
from replay_pools.storage.files import dump_json, parse_json
from replay_pools.storage.tables import flat, read_toml

# What the command says itself, and what a sweep says.
BESIDE = ("verb", "seed", "preregistered", "intervention.arms")


def train_command(
    run: Mapping[str, Any], *, arm: str, seed: int, name: str, changes: Mapping[str, Any] | None = None
) -> str:
    """The command, from the preset that is nearest to the run.

    Args:
        run: settings of a run of `probe train`.
        arm, seed, name: of the new run.
        changes: {key with dots: value} that the new run has instead.
    """
    settings = flat(run) | dict(changes or {})
    different = {preset: _different(settings, preset) for preset in preset_names() if _trains(preset)}
    nearest = min(different, key=lambda preset: len(different[preset]))
    words = ["probe", "train", "--preset", nearest, "--arm", arm, "--seed", str(seed)]
    for key in different[nearest]:
        words += ["--set", f"{key}={setting_text(settings[key])}"]
    return shlex.join([*words, "--name", name])


def _trains(preset: str) -> bool:
    return read_toml(PRESETS / f"{preset}.toml", "a preset").get("verb") == "train"


def _different(settings: Mapping[str, Any], preset: str) -> list[str]:
    """The keys whose values are not those of a preset."""
    table = parse_json(dump_json(asdict(configure("train", preset=preset))), preset)
    known = flat(table)
    return [key for key, value in settings.items() if key not in BESIDE and value != known.get(key)]
