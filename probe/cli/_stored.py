"""The contents of OUT for `probe show`, one table for each kind.

Each kind has a function `list_KIND(out)` that returns its rows. To add a kind, write one and add it to KINDS at the end
of this file. Files are read without checks, so that a damaged file does not hide the others.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from extraction.files import direction_names
from probe.cli._frame import echo, echo_json, echo_table
from probe.records.run import CONFIG_FILE, MANIFEST_FILE
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat
from replay_pools.pool import BUILTIN, HEADER_NAME, MANIFEST_NAME, step_files

Row = dict[str, Any]  # {column: value} of one entry; all rows of a kind have the same columns
# {column: key in the card of directions}
CARD = {
    **{"basis": "basis", "pairs": "pairs", "method": "settings.method", "sides": "settings.sides", "k": "settings.k"},
    **{"directions": "num_directions", "modules": "num_modules"},
}


def list_stored(out: Path, kind: str | None, as_json: bool) -> None:
    """Print the contents of OUT: one kind, or all."""
    tables = {name: rows_of(out) for name, rows_of in KINDS.items() if kind in (None, name)}
    if as_json:
        echo_json(tables)
        return
    for name, rows in tables.items():
        if rows:
            echo_table((name, *list(rows[0])[1:]), [[_cell(value) for value in row.values()] for row in rows])
            echo()
    if missing := [name for name, rows in tables.items() if not rows]:
        echo(f"none in {out}: {', '.join(missing)}")


def list_pools(out: Path) -> list[Row]:
    """List the pools in OUT/pools, then the built-in pools with other names."""
    made = _folders(out / "pools")
    hidden, rows = {path.name for path in made}, []
    for path in [*made, *(path for path in _folders(BUILTIN) if path.name not in hidden)]:
        is_finished = (path / MANIFEST_NAME).is_file()
        header = _table(path / (MANIFEST_NAME if is_finished else HEADER_NAME))
        model, adapter = header.get("policy.base_model"), header.get("policy.adapter")
        mode, hint = header.get("plan.mode"), header.get("plan.hint")  # may be lists in logs of another program
        rows.append(
            {
                "name": path.name,
                "groups": header.get("counts.steps", len(step_files(path))),
                "rollouts": header.get("counts.rollouts"),
                "policy": f"{model} + {adapter}" if model and adapter else model,
                "mode": mode if isinstance(mode, str) else None,
                "hint": hint if isinstance(hint, bool) else None,
                "place": "built in" if path.parent == BUILTIN else str(path),
                "state": _state(is_finished),
            }
        )
    return rows


def list_directions(out: Path) -> list[Row]:
    """List the direction files in OUT/directions, from their cards."""
    cards = {name: _table(out / "directions" / f"{name}.card.json") for name in direction_names(out)}
    return [{"name": name, **{column: card.get(key) for column, key in CARD.items()}} for name, card in cards.items()]


def list_runs(out: Path) -> list[Row]:
    """List the replays and trainings in OUT/runs."""
    rows = []
    for path in _folders(out / "runs"):
        config, manifest = _table(path / CONFIG_FILE), path / MANIFEST_FILE
        row = {
            "name": path.name,
            "verb": config.get("settings.verb"),
            "steps": len(list(path.glob("step_*.cos.jsonl.gz"))),
            "of": config.get("settings.steps"),  # null: all groups of the pools
            "arms": config.get("settings.intervention.arms"),
            "seed": config.get("settings.seed"),
        }
        rows.append(row | {"state": "stopped early" if _table(manifest).get("stopped") else _state(manifest.is_file())})
    return rows


def _folders(place: Path) -> list[Path]:
    """Return the folders in a place, sorted, without hidden (unfinished) ones."""
    return sorted(path for path in place.glob("*/") if not path.name.startswith((".", "_")))


def _table(path: Path) -> Mapping[str, Any]:
    """Return {key with dots: value} of a JSON file; empty for a missing or broken file."""
    try:
        value = read_json(path)
    except (InputError, OSError):
        return {}
    return flat(value) if isinstance(value, dict) else {}


def _state(is_finished: bool) -> str:
    return "finished" if is_finished else "unfinished"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


KINDS: dict[str, Callable[[Path], list[Row]]] = {
    "pools": list_pools,
    "directions": list_directions,
    "runs": list_runs,
}
