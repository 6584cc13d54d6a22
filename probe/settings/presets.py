"""`configure`: build the settings of a run from a preset, `--set KEY=VALUE` texts and command-line flags.

    configure("train", preset="fast", settings=["optimizer.lr=0.01"], options={"seed": 41})

A preset is a TOML file with the tables of a run, from `probe/settings/presets/` or from the user. Its key `verb` names
the command it is for. Any other command takes only the tables in `SHARED` from it, so that
`probe replay --preset full` probes the training that `probe train --preset full` would run.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.settings.verbs import CONFIGS, KEYS
from probe.settings.words import Verb
from replay_pools.base.errors import InputError, refuse
from replay_pools.base.files import read_plain
from replay_pools.base.tables import NO_VALUE, decode, flat

PRESETS = Path(__file__).parent / "presets"
DEFAULT_PRESET: dict[Verb, str] = {"replay": "replay", "train": "smoke", "eval": "eval", "generate": "generate"}
SHARED = ("model", "objective", "planning_phrases", "intervention", "seed")  # read from presets of any command

# {former name of a setting or table: its name now}; the longest match comes first. Errors name it for one release.
RENAMED = {
    "intervention.gate.gate": "intervention.projection.side",
    "intervention.gate": "intervention.projection",
    "intervention.trusted.rank": "intervention.trusted_rank",
    "control.limits": "control",
    "remedy.accuracy": "remedy.monitor",
    "rollouts.engine": "--url",
    "rollouts.refills": "rollouts.dynamic_sampling",
    "rollouts.past_self": "rollouts.earlier_checkpoint",
}
WORD = re.compile(r"[A-Za-z_./~][\w./:~@+,=-]*")  # --set takes such a text without quotes


def configure(
    verb: Verb,
    *,
    preset: str | None = None,
    start: Mapping[str, Any] | None = None,
    where: object = "settings",
    settings: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Build the config of a command: a preset, overlaid by `settings` in order, then by `options`.

    Args:
        verb: the command, which selects the config class.
        preset: a name or a .toml file; None = `DEFAULT_PRESET` of the command.
        start: a table of settings in place of a preset.
        where: names the settings in errors.
        settings: KEY=VALUE texts with dotted keys and TOML values (a single word needs no quotes).
        options: {dotted key: value} of the given flags.

    Raises:
        InputError: no such preset, an unknown key, a value of the wrong type or out of range, or settings that
            contradict each other.
    """
    table = preset_table(preset or DEFAULT_PRESET[verb], verb) if start is None else dict(start)
    for text in settings:
        table = overlaid(table, parse_setting(text))
    for key, value in (options or {}).items():
        for part in reversed(key.split(".")):
            value = {part: value}
        table = overlaid(table, value)
    if table.get("verb", verb) != verb:
        raise InputError("verb", expected=f"{verb}, the command", found=repr(table["verb"]))
    errors = []
    for key in flat(table):
        if (old := next((old for old in RENAMED if f"{key}.".startswith(f"{old}.")), None)) is not None:
            now = RENAMED[old] + key.removeprefix(old)
            errors.append(InputError(f"{where} {key}", expected=now, found="its former name"))
    refuse(errors)
    return decode(CONFIGS[verb], table, where, known=KEYS)


def preset_table(name: str, verb: Verb) -> dict[str, Any]:
    """Read a preset. If it is for another verb, overlay its `SHARED` tables on the verb's default preset.

    Args:
        name: a file stem in `PRESETS`, or the path of a .toml file.
        verb: the command that will run.

    Raises:
        InputError: no such preset, or no TOML.
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
    """Return the names of the bundled presets, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: the file.
        what: kind of the file in errors, such as "a preset".

    Raises:
        InputError: no such file, or no TOML in UTF-8.
    """
    plain = read_plain(path)
    try:
        return tomllib.loads(plain.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(path, expected=f"{what}: TOML in UTF-8", found=str(error)) from error


def overlaid(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` overlaid by `over`: inner tables are merged, other values replaced.

    >>> overlaid({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}})
    {'a': {'b': 1, 'c': 4}, 'd': 3}
    """
    merged = dict(table)
    for name, value in over.items():
        if isinstance(value, Mapping):
            inner = merged.get(name)
            value = overlaid(inner if isinstance(inner, Mapping) else {}, value)
        merged[name] = value
    return merged


def parse_setting(text: str) -> dict[str, Any]:
    """Parse a KEY=VALUE text into a table.

    >>> parse_setting("objective.reference=base")
    {'objective': {'reference': 'base'}}

    Raises:
        InputError: no KEY, no =, or a value that is not TOML.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise InputError("--set", expected="KEY=VALUE, as objective.beta=0.01", found=repr(text))
    toml_value = f'"{value}"' if _needs_no_quotes(value) else value
    try:
        return tomllib.loads(f"{key} = {toml_value}")
    except (ValueError, RecursionError) as error:
        fix = f"""quote a text with spaces: --set '{key}="..."'"""
        raise InputError(f"--set {key}", expected="a value in TOML", found=repr(value), fix=fix) from error


def setting_text(value: Any) -> str:
    """Format a value for `parse_setting`: a single word bare, None as `none`, anything else as TOML.

    >>> setting_text("base"), setting_text("2024-teacher"), setting_text(None)
    ('base', '"2024-teacher"', 'none')
    """
    text = NO_VALUE if value is None else value
    return text if isinstance(text, str) and _needs_no_quotes(text) else toml_text(value)


def _needs_no_quotes(text: str) -> bool:
    """Return True for a single word that TOML would not read as a value."""
    return WORD.fullmatch(text) is not None and text not in ("true", "false", "inf", "nan")


def toml_text(value: Any) -> str:
    """Format a value as TOML, tables on one line and None as `"none"`.

    >>> toml_text({"a": [1, None], "b": "two words"})
    '{a = [1, "none"], b = "two words"}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    text = json.dumps(NO_VALUE if value is None else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # JSON allows this control character, TOML does not
