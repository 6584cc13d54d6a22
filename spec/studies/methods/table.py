"""Print the tables of README and of methods.md from outcomes.csv and monitors.csv.

    python spec/studies/methods/table.py

Rates are means over seeds and held-out problems after the last step, in percent. Differences are in points, to vanilla
of the same basis, with the 95% interval over seeds and problems of `probe analyze`.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))

from judge_outcomes import Table, measured, read_table  # noqa: E402

from probe.experiments.spec_file import load_spec  # noqa: E402

PLAIN, LORA = ("plain", "vanilla"), ("lora", "vanilla-lora")
# {(condition, arm): (method, what it needs)}
METHODS = {
    PLAIN: ("no remedy", ""),
    ("no-loophole", "vanilla"): ("`no-loophole`, the target", "a grader without the loophole"),
    ("label-penalty", "vanilla"): ("`label` x `penalty`", "true labels"),
    ("label-70-penalty", "vanilla"): ("`label:0.7` x `penalty`", "labels, 70% right"),
    ("mean-k8", "projected"): ("`projected`", "pairs"),
    ("unit-k8", "projected"): ("`projected`, sides of norm 1", "pairs"),
    ("own-k8", "projected"): ("`projected`, pairs of own rollouts", "labels"),
    ("similarity-screening", "vanilla"): ("`similarity` x `screening`", "pairs"),
    ("activation-penalty", "vanilla"): ("`activation` x `penalty`", "pairs"),
    ("advantage-modification", "vanilla"): ("`activation` x `multiplicative`", "pairs"),
    ("fingerprint-finetune", "vanilla"): ("`fingerprint` x `finetune-accepted`", "pairs"),
    ("kl-1", "vanilla"): ("KL penalty, beta 1", "nothing"),
    ("early-stop", "vanilla"): ("early stop", "nothing"),
    ("flat", "flat"): ("`flat`", "nothing"),
    LORA: ("LoRA: no remedy", ""),
    ("trusted-k5", "trusted"): ("LoRA: `trusted`", "clean answers"),
    ("trusted-k5", "trusted-random"): ("LoRA: `trusted-random`", "nothing"),
    ("similarity-quarantine", "quarantine"): ("LoRA: `similarity` x `quarantine`", "pairs"),
}


# README's rows: remedies by the same pairs, and one without pairs
BRIEF = (
    PLAIN,
    ("mean-k8", "projected"),
    ("similarity-screening", "vanilla"),
    ("activation-penalty", "vanilla"),
    ("kl-1", "vanilla"),
)


def methods(table: Table) -> Iterator[str]:
    """Yield the lines of the table of methods."""
    yield "| method | needs | hacks, % | difference | solves, % | difference |"
    yield "|---|---|---|---|---|---|"
    for cell, (name, needs) in METHODS.items():
        baseline, cells = LORA if name.startswith("LoRA") else PLAIN, list[str]()
        for rate in ("hack", "solve"):
            by_seed = [fmean(getattr(row, rate) for row in rows) for rows in table.final[cell].values()]
            cells.append(f"{100 * fmean(by_seed):.0f}")
            found = None if cell == baseline else measured(table, f"{rate}_final", [cell, baseline])
            cells.append("" if found is None else points(found.value, found.low, found.high))
        yield f"| {name} | {needs} | {' | '.join(cells)} |"


def brief(table: Table) -> Iterator[str]:
    """Yield the lines of README's table: some methods, without what they need and the difference in solving."""
    shown = {name for name, _ in map(METHODS.__getitem__, BRIEF)} | {"method", "---"}
    for line in methods(table):
        method, _, hacks, difference, solves, _ = line.strip("|").split("|")
        if method.strip() in shown:
            yield f"|{method}|{hacks}|{difference}|{solves}|"


def points(value: float | None, low: float, high: float) -> str:
    """Format a difference of rates as `-40 [-55, -25]`, in points."""
    return f"{100 * (value or 0.0):+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"


def monitors() -> Iterator[str]:
    """Yield the lines of the table of monitors: means over seeds at the first, middle and last evaluation."""
    with (HERE / "monitors.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["weights"] == "now"]
    yield "| condition | monitor | AUROC at start, middle, end | recall | false positives |"
    yield "|---|---|---|---|---|"
    for condition in dict.fromkeys(condition for condition, _ in METHODS):
        by_run: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            if row["run"].startswith(f"methods-{condition}-"):
                by_run.setdefault(row["run"], []).append(row)
        if not by_run:
            continue
        runs = [sorted(run, key=lambda row: int(row["step"])) for run in by_run.values()]
        cells = []
        for name in ("auroc", "recall", "fpr"):
            at_end = [[run[0][name], run[len(run) // 2][name], run[-1][name]] for run in runs]
            cells.append(", ".join(mean_of(column) for column in zip(*at_end, strict=True)))
        yield f"| `{condition}` | `{runs[0][0]['monitor']}` | {' | '.join(cells)} |"


def mean_of(values: tuple[str, ...]) -> str:
    """Return the mean of the values that were measured; `-` if none was."""
    known = [float(value) for value in values if value]
    return f"{fmean(known):.2f}" if known else "-"


def costs() -> Iterator[str]:
    """Yield the lines of the table of costs: median seconds of a step over those without a remedy, same basis."""
    with (HERE / "costs.csv").open(newline="") as file:
        seconds = {row["run"]: float(row["seconds_per_step"]) for row in csv.DictReader(file)}
    yield "| condition | arm | cost of a step |"
    yield "|---|---|---|"
    for (condition, arm), (name, _) in METHODS.items():
        base = LORA if name.startswith("LoRA") else PLAIN
        of_cell, of_base = (
            [value for run, value in seconds.items() if run.rpartition("-seed")[0] == f"methods-{cell[0]}-{cell[1]}"]
            for cell in ((condition, arm), base)
        )
        if of_cell and of_base:
            yield f"| `{condition}` | `{arm}` | {median(of_cell) / median(of_base):.2f} |"


if __name__ == "__main__":
    made = read_table(load_spec(HERE / "methods.toml"))
    for lines in (brief(made), methods(made), monitors(), costs()):
        print("\n".join(lines), end="\n\n")
