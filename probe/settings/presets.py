"""`configure`: the settings of a run from a preset, `--set KEY=VALUE` texts and the flags of the command line.

    configure("train", preset="fast", settings=["optimizer.lr=0.01"], options={"seed": 41})

A preset is a TOML file with the tables of a run: one of `probe/settings/presets/`, or a file of the user's. Its key
`verb` names the verb that it is made for. Another verb takes from it only the tables in `SHARED`, so that
`probe replay --preset full` probes the training that `probe train --preset full` would run.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.settings.run import CONFIGS, KEYS
from probe.settings.words import Verb
from replay_pools.base.errors import InputError
from replay_pools.base.tables import NO_VALUE, decode, overlaid, parse_toml, read_toml, toml_text

PRESETS = Path(__file__).parent / "presets"
DEFAULT_PRESET: dict[Verb, str] = {"replay": "replay", "train": "smoke", "eval": "eval", "generate": "generate"}
SHARED = ("model", "objective", "planning_phrases", "intervention", "seed")  # taken from a preset of any verb

WORD = re.compile(r"[A-Za-z_./~][\w./:~@+,=-]*")  # a text that --set takes without quotes


def configure(
    verb: Verb,
    *,
    preset: str | None = None,
    start: Mapping[str, Any] | None = None,
    where: object = "settings",
    settings: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Any:
    """The settings of a run, of the class of its verb: a preset, then `settings` in their order, then `options`.

    Args:
        verb: the command that the settings are for.
        preset: a name or a .toml file; None = `DEFAULT_PRESET` of the verb.
        start: a table of settings in the place of a preset.
        where: names the settings in errors.
        settings: texts KEY=VALUE, the key with dots, the value in TOML (a single word needs no quotes).
        options: {key with dots: value} of the flags that were given.

    Raises:
        InputError: no such preset; keys that are unknown, values of another type or out of their range, settings that
            do not fit together.
    """
    table = preset_table(preset or DEFAULT_PRESET[verb], verb) if start is None else dict(start)
    for text in settings:
        table = overlaid(table, parse_setting(text))
    table = overlaid(table, nested(options or {}))
    if table.get("verb", verb) != verb:
        raise InputError("verb", expected=f"{verb}, as the command says", found=repr(table["verb"]))
    return decode(CONFIGS[verb], table, where, known=KEYS)


def preset_table(name: str, verb: Verb) -> dict[str, Any]:
    """The tables of a preset: all of them where it is made for the verb, else its `SHARED` ones over the verb's own.

    Args:
        name: of a file in `PRESETS`, or the path of a .toml file.
        verb: a verb.

    Raises:
        InputError: no such preset, not TOML.
    """
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    if not path.is_file():
        expected = f"{', '.join(preset_names())}, or a .toml file"
        raise InputError("--preset", expected=expected, found=repr(name))
    table = read_toml(path, "a preset")
    if table.get("verb", verb) != verb:
        base = read_toml(PRESETS / f"{DEFAULT_PRESET[verb]}.toml", "a preset")
        shared = {key for key in SHARED if key in CONFIGS[verb].__pydantic_fields__}
        table = {key: value for key, value in base.items() if key not in SHARED} | {
            key: value for key, value in table.items() if key in shared
        }
    return {**table, "verb": verb}


def preset_names() -> list[str]:
    """The names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def parse_setting(text: str) -> dict[str, Any]:
    """The table that a text KEY=VALUE stands for.

    >>> parse_setting("objective.reference=base")
    {'objective': {'reference': 'base'}}

    Raises:
        InputError: a text without KEY or =, a value that is not TOML.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise InputError("--set", expected="KEY=VALUE, as objective.beta=0.01", found=repr(text))
    toml_value = f'"{value}"' if _needs_no_quotes(value) else value
    try:
        return parse_toml(f"{key} = {toml_value}")
    except ValueError as error:
        fix = f"""a text with blanks needs quotes: --set '{key}="..."'"""
        raise InputError(f"--set {key}", expected="a value in TOML", found=repr(value), fix=fix) from error


def setting_text(value: Any) -> str:
    """A value as the text behind `=` that `parse_setting` reads: a single word bare, None as `none`, else TOML.

    >>> setting_text("base"), setting_text("2024-teacher"), setting_text(None)
    ('base', '"2024-teacher"', 'none')
    """
    text = NO_VALUE if value is None else value
    return text if isinstance(text, str) and _needs_no_quotes(text) else toml_text(value)


def _needs_no_quotes(text: str) -> bool:
    """Whether a text is one word, and none of the four that TOML reads as values."""
    return WORD.fullmatch(text) is not None and text not in ("true", "false", "inf", "nan")


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
