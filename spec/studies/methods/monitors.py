"""Write monitors.csv: the monitors' AUROC, recall and false-positive rate by step, from the sweep's evaluations.

python spec/studies/methods/monitors.py [OUT]

Rows of runs that are not in OUT stay, as in outcomes.csv: their runs may be gone.
"""

import csv
import sys
from pathlib import Path

from probe.records.run import CONFIG_FILE, read_evals
from replay_pools.base.files import read_json

HERE = Path(__file__).parent
FIELDS = ("run", "monitor", "step", "weights", "auroc", "recall", "fpr", "n_hacked", "n_clean")


def main(out: Path) -> None:
    """Read the finished runs of the sweep in `out`/runs."""
    rows = []
    for manifest in sorted(out.glob("runs/methods-*/manifest.json")):
        settings = read_json(manifest.parent / CONFIG_FILE)["settings"]
        for line in read_evals(manifest.parent):
            for weights, found in line.get("monitor", {}).items():
                row = {"run": manifest.parent.name, "monitor": settings["remedy"]["monitor"]}
                row |= {"step": line["step"], "weights": weights}
                rows.append(row | {name: found[name] for name in FIELDS[4:]})
    table, made = HERE / "monitors.csv", {row["run"] for row in rows}
    if table.is_file():
        with table.open(newline="") as file:
            rows += [row for row in csv.DictReader(file) if row["run"] not in made]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["run"], int(row["step"]), row["weights"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out"))
