"""Write monitors.csv and costs.csv from the runs of the sweep.

    python spec/studies/methods/monitors.py [OUT]

monitors.csv has the monitors' AUROC, recall and false-positive rate by evaluation, costs.csv the median seconds of a
run's steps. Rows of runs that are not in OUT stay, as in outcomes.csv: their runs may be gone.
"""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from probe.records.run import CONFIG_FILE, read_evals
from replay_pools.base.files import decode_jsonl, read_json

HERE = Path(__file__).parent
FIELDS = ("run", "monitor", "step", "weights", "auroc", "recall", "fpr", "n_hacked", "n_clean")
COSTS = ("run", "steps", "seconds_per_step")


def main(out: Path) -> None:
    """Read the finished runs of the sweep in `out`/runs."""
    rows, costs = [], []
    for manifest in sorted(out.glob("runs/methods-*/manifest.json")):
        run, settings = manifest.parent, read_json(manifest.parent / CONFIG_FILE)["settings"]
        for line in read_evals(run):
            for weights, found in line.get("monitor", {}).items():
                row = {"run": run.name, "monitor": settings["remedy"]["monitor"]}
                row |= {"step": line["step"], "weights": weights}
                rows.append(row | {name: found[name] for name in FIELDS[4:]})
        timed = decode_jsonl((run / "timings.jsonl").read_bytes(), run)
        seconds = [row["seconds"] for row in timed if "step" in row]
        costs.append({"run": run.name, "steps": len(seconds), "seconds_per_step": f"{median(seconds):.3f}"})
    _write(HERE / "monitors.csv", FIELDS, rows, ("run", "step", "weights"))
    _write(HERE / "costs.csv", COSTS, costs, ("run",))


def _write(table: Path, fields: Iterable[str], rows: list[dict[str, Any]], order: Iterable[str]) -> None:
    """Write rows in order, with those of the table whose runs are not among them."""
    made = {row["run"] for row in rows}
    if table.is_file():
        with table.open(newline="") as file:
            rows = rows + [row for row in csv.DictReader(file) if row["run"] not in made]
    rows = sorted(rows, key=lambda row: [int(row[name]) if name == "step" else row[name] for name in order])
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*fields], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out"))
