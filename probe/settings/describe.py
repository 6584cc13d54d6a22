"""Every setting of a run with its type and default, read off the dataclasses, for spec/guide/settings.md. No torch.

    python -m probe.settings.describe              the rows `| key | type | default |`, one for each setting

The page adds a column that says what the setting means. A test compares its keys, types and defaults with these rows,
so that a new setting is not forgotten there.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from probe.settings.run import RunConfig

MANY = 6  # a longer list is shown by its length
NAMES: dict[Any, str] = {bool: "true, false", int: "whole number", float: "number", str: "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting: what `--set KEY=VALUE` names, and what it takes."""

    key: str
    type: str
    default: str


def settings(kind: Any = RunConfig, path: str = "") -> Iterator[SettingRow]:
    """The settings of a dataclass and of the dataclasses inside it, in the order of their fields.

    >>> next(settings())
    SettingRow(key='verb', type='`replay`, `train`, `eval`, `generate`', default='replay')
    """
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        key = f"{path}{field.name}"
        table = _table_of(hint)
        if table is not None:
            yield from settings(table, f"{key}.")
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        yield SettingRow(key=key, type=_type_text(hint), default=_value_text(default))


def document() -> str:
    """The rows of all settings as a Markdown table."""
    lines = ["| setting | type | default |", "|---|---|---|"]
    for setting in settings():
        lines.append(f"| `{setting.key}` | {setting.type} | {setting.default} |")
    return "\n".join(lines) + "\n"


def _table_of(hint: Any) -> Any:
    """The dataclass that a field holds, or None; a list of dataclasses is no table."""
    for part in (hint, *get_args(hint)):
        if is_dataclass(part) and get_origin(hint) is not tuple:
            return part
    return None


def _type_text(hint: Any) -> str:
    """A type in plain words; what may be left empty takes `none`."""
    parts = get_args(hint)
    if NoneType in parts:
        inner = [_type_text(part) for part in parts if part is not NoneType]
        return f"{', '.join(inner)}, or none"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{word}`" for word in parts)
    if get_origin(hint) is tuple:
        return "list of tables" if is_dataclass(parts[0]) else f"list of {_type_text(parts[0])}s"
    return NAMES[hint]


def _value_text(value: Any) -> str:
    """A default as `--set` takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        items = ", ".join(f'"{item}"' for item in value)
        return f"[{items}]" if len(value) <= MANY else f"a list of {len(value)}"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    print(document(), end="")
