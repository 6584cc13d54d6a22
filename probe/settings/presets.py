"""A run's settings from a preset, `--set KEY=VALUE` and what the command line knows: the same way for every verb.

    configure("train", preset="fast", settings=["optimizer.lr=0.01"], options={"seed": 41})

A preset is a TOML file with the tables of `RunConfig`: one of `probe/settings/presets/`, or any file of the user's. It
may say for which `verb` it is made. Another verb takes from it what all verbs share (model, objective, intervention,
seed), so that `probe replay --preset full` probes the training that `probe train --preset full` would run.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.settings.run import KEYS, TABLES, TABLES_OF, RunConfig
from probe.settings.words import Verb
from replay_pools.errors import InputError
from replay_pools.tables import nearest, overlaid, read_toml

PRESETS = Path(__file__).parent / "presets"
DEFAULT_PRESET: dict[Verb, str] = {"replay": "replay", "train": "smoke", "eval": "eval", "generate": "generate"}
SHARED = ("model", "objective", "planning_phrases", "intervention", "seed")  # what any verb takes from any preset

_WORD = re.compile(r"[A-Za-z_./~][\w./:~@+-]*")  # a text that --set takes without quotes


def configure(
    verb: Verb,
    *,
    preset: str | None = None,
    start: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The settings of a run: its preset, over it `settings` in their order, over those `options`.

    Args:
        preset: a name or a .toml file; None = the verb's own.
        start: the table of a run, in the place of a preset.
        settings: texts KEY=VALUE, the key with dots, the value in TOML (a single word needs no quotes).
        options: {key with dots: value} of the flags that were given.

    Raises:
        InputError: no such preset; a key that is unknown; a value of another type or out of its range.
    """
    where = "settings"
    if start is None or preset is not None:
        name = preset or DEFAULT_PRESET[verb]
        start, where = preset_table(name, verb), f"preset {name}"
    table = dict(start)
    for text in settings:
        table = overlaid(table, parse_setting(text))
    table = overlaid(table, nested(options or {}))
    if table.get("verb", verb) != verb:
        raise InputError("verb", expected=f"{verb}, as the command says", found=repr(table["verb"]))
    try:
        return RunConfig.from_json(table, "settings")
    except InputError as error:
        try:
            RunConfig.from_json(start, where)
        except InputError as own:
            if (own.expected, own.found) == (error.expected, error.found):
                raise own from error  # the preset is wrong by itself
        raise


def preset_table(name: str, verb: Verb) -> dict[str, Any]:
    """The tables of a preset as the verb takes them.

    Raises:
        InputError: no such preset, not TOML.
    """
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    if not path.is_file():
        expected = f"{', '.join(preset_names())}, or a .toml file"
        raise InputError("--preset", expected=expected, found=repr(name))
    return for_verb(read_toml(path, "a preset"), verb)


def for_verb(table: Mapping[str, Any], verb: Verb) -> dict[str, Any]:
    """A table of settings as the verb takes it: all of one made for it, and of others what all verbs share."""
    made_for = table.get("verb", verb)
    if made_for != verb:
        table = {key: value for key, value in table.items() if key in SHARED}
        base = for_verb(read_toml(PRESETS / f"{DEFAULT_PRESET[verb]}.toml", "a preset"), verb)
        table = overlaid({key: value for key, value in base.items() if key not in SHARED}, table)
    empty = {name: {} for name, verbs in TABLES_OF.items() if verb in verbs}
    return overlaid(empty, {**table, "verb": verb})


def preset_names() -> list[str]:
    """The presets that come with the package, by their files."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def parse_setting(text: str) -> dict[str, Any]:
    """The table that one KEY=VALUE stands for.

    >>> parse_setting("objective.reference=base")
    {'objective': {'reference': 'base'}}

    Raises:
        InputError: no KEY=VALUE, a key that no run has, a value that is not TOML.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise InputError("--set", expected="KEY=VALUE, as objective.beta=0.01", found=repr(text))
    if key.partition(".")[0] not in TABLES:
        near = nearest(key, KEYS)
        fix = f"did you mean {near}?" if near else f"the tables are {', '.join(TABLES)}"
        raise InputError(f"--set {key}", expected="a setting of a run", found="an unknown key", fix=fix)
    quoted = f'"{value}"' if _WORD.fullmatch(value) and value not in ("true", "false", "inf", "nan") else value
    try:
        return tomllib.loads(f"{key} = {quoted}")
    except tomllib.TOMLDecodeError as error:
        fix = f"""a text with blanks needs quotes: --set '{key}="..."'"""
        raise InputError(f"--set {key}", expected="a value in TOML", found=repr(value), fix=fix) from error


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Tables from keys with dots.

    >>> nested({"objective.beta": 0.1, "seed": 3})
    {'objective': {'beta': 0.1}, 'seed': 3}
    """
    table: dict[str, Any] = {}
    for key, value in options.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        table = overlaid(table, value)
    return table
