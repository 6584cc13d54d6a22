"""Tables of the content of OUT, one a kind, for `probe show`.

Every kind has a function `list_KIND(out)` that returns its rows. To add a kind, write one and add it to KINDS at the
end of this file. Files are read without checks, so that a damaged file hides no others.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from extraction.files import direction_names
from probe.cli._frame import echo, echo_json, echo_table
from probe.records.run import CONFIG_FILE, MANIFEST_FILE
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.pool import BUILTIN, HEADER_NAME, MANIFEST_NAME, step_files

Row = dict[str, Any]  # {column: value} of one entry; all rows of a kind have the same columns


def list_stored(out: Path, kind: str | None, as_json: bool) -> None:
    """Print the content of OUT, of one kind or of all."""
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
    """List the pools in OUT/pools, then the bundled ones with other names."""
    made = _folders(out / "pools")
    hidden = {path.name for path in made}
    return [_pool(path) for path in [*made, *(path for path in _folders(BUILTIN) if path.name not in hidden)]]


def _pool(path: Path) -> Row:
    """Return a row of `list_pools`."""
    is_finished = (path / MANIFEST_NAME).is_file()
    header = _table(path / (MANIFEST_NAME if is_finished else HEADER_NAME))
    policy, plan, counts = (_inner(header, key) for key in ("policy", "plan", "counts"))
    adapter = f" + {policy['adapter']}" if policy.get("adapter") else ""
    return {
        "name": path.name,
        "groups": counts.get("steps", len(step_files(path))),
        "rollouts": counts.get("rollouts"),
        "policy": f"{policy['base_model']}{adapter}" if policy.get("base_model") else None,
        "mode": plan.get("mode") if isinstance(plan.get("mode"), str) else None,  # imported logs may have a list
        "hint": plan.get("hint") if isinstance(plan.get("hint"), bool) else None,
        "place": "built in" if path.parent == BUILTIN else str(path),
        "state": _state(is_finished),
    }


def list_directions(out: Path) -> list[Row]:
    """List the directions in OUT/directions, by their cards."""
    rows = []
    for name in direction_names(out):
        card = _table(out / "directions" / f"{name}.card.json")
        extraction = _inner(card, "settings")
        rows.append(
            {
                "name": name,
                "basis": card.get("basis"),
                "pairs": card.get("pairs"),
                "method": extraction.get("method"),
                "sides": extraction.get("sides"),
                "k": extraction.get("k"),
                "directions": card.get("num_directions"),
                "modules": card.get("num_modules"),
            }
        )
    return rows


def list_runs(out: Path) -> list[Row]:
    """List the replays and trainings in OUT/runs."""
    rows = []
    for path in _folders(out / "runs"):
        settings = _inner(_table(path / CONFIG_FILE), "settings")
        manifest = _table(path / MANIFEST_FILE)
        done = len(list(path.glob("step_*.cos.jsonl.gz")))
        rows.append(
            {
                "name": path.name,
                "verb": settings.get("verb"),
                "steps": done,
                "of": settings.get("steps"),  # null: all groups of the pools
                "arms": _inner(settings, "intervention").get("arms"),
                "seed": settings.get("seed"),
                "state": "stopped early" if manifest.get("stopped") else _state((path / MANIFEST_FILE).is_file()),
            }
        )
    return rows


def list_evals(out: Path) -> list[Row]:
    """List the evaluations in OUT/evals."""
    rows = []
    for path in _folders(out / "evals"):
        settings = sorted(place.name for place in _folders(path))
        rows.append({"name": path.name, "settings": settings, "state": _state((path / "evaluation.json").is_file())})
    return rows


def list_sweeps(out: Path) -> list[Row]:
    """List the sweeps in OUT/sweeps, with the number of commands in each state."""
    from probe.experiments.jobs import STATE_FILE

    rows = []
    for path in _folders(out / "sweeps"):
        state = _table(path / STATE_FILE)
        jobs = [job["status"] for job in state.get("rows", [])]
        counts = {status: jobs.count(status) for status in ("done", "running", "failed")}
        rows.append({"name": path.name, "jobs": len(jobs), **counts, "stopped": state.get("stopped") or None})
    return rows


def list_reports(out: Path) -> list[Row]:
    """List the pages in OUT/reports."""
    files = sorted((out / "reports").glob("*.html"))
    return [{"name": path.name, "KiB": round(path.stat().st_size / 1024)} for path in files]


def _folders(place: Path) -> list[Path]:
    """Return the folders in a place, sorted, without hidden ones, which are unfinished."""
    return sorted(path for path in place.glob("*/") if not path.name.startswith((".", "_")))


def _table(path: Path) -> Mapping[str, Any]:
    """Read an object from a JSON file; empty if it cannot be read."""
    try:
        value = read_json(path)
    except (InputError, OSError):
        return {}
    return value if isinstance(value, dict) else {}


def _inner(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key; empty if the value is something else."""
    value = table.get(key)
    return value if isinstance(value, dict) else {}


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
    "evals": list_evals,
    "sweeps": list_sweeps,
    "reports": list_reports,
}
