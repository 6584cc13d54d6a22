"""The study `foretell`: do the measures of a replay rank what the trainings of the same treatments become?

    probe spec sweep spec/studies/foretell/foretell.toml           # the trainings
    python spec/studies/foretell/foretell.py replay   # replay every treatment and seed; resumable
    python spec/studies/foretell/foretell.py table [--json]   # rank correlations, and what followed each verdict

A treatment is a condition of the spec: directions and a projection. Over treatments,

    fall of treatment c = mean over seeds of (rate of the untreated - rate of c), at the end, on held-out problems
    rho                 = Spearman's (measure, fall)

with the interval of Fisher and the standard error of Bonett and Wright (2000), sqrt((1 + rho^2 / 2) / (n - 3)). This is
the linear datamodeling score of data attribution (Park et al. 2023, arXiv 2303.14186). Shapes: M modules, k directions,
T steps, G samples of a step, N pair gradients, H held-out pairs.
"""

import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy import stats

from probe.analysis.analyze import analyze
from probe.analysis.forecast import SAMPLE_TARGETS, held_out_margin, rewarded_mean
from probe.analysis.formatting import TextTable, render_table
from probe.analysis.statistics.geometry import extract, weighted
from probe.analysis.statistics.intervals import Array, prompt_weights, t_interval
from probe.analysis.statistics.nulls import true_labels
from probe.analysis.statistics.run_gradients import Linked, link
from probe.analysis.statistics.thresholds import MATERIAL_RATE
from probe.analysis.training_runs import training_outcome
from probe.experiments.spec import Spec
from probe.experiments.spec_file import load_spec
from probe.records.run import MANIFEST_FILE, Run, gram_dir, read_run
from probe.settings.arms import ARMS, SIDES, measured_arm
from probe.settings.presets import configure
from probe.settings.verbs import ReplayConfig
from probe.settings.words import Side
from replay_pools.base.files import write_json

SPEC = Path(__file__).with_suffix(".toml")
UNTREATED = "none"
# The first choose the measure, the others confirm it.
CHOOSE = ("k1", "k4", "unseen-simple", "stdout-marker", "placebo", "haar", "permuted-dosed")
CONFIRM = ("k2", "k8", "mean", "unseen-copying", "sentinel", "style", "permuted", "haar-dosed")
REPLAY = {"source.replay_dirs": ["teacher", "base-hinted"], "source.match": "prompt"}
MEASURES = ("cos_in", "pull", "hackward_frac", "norm_removed", "margin_removed", "hacks_removed", "honest_removed")
OUTCOMES = ("hack", "solve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """One treatment; means over the seeds whose runs are there."""

    name: str
    half: str  # choose or confirm
    verdict: str | None  # of the first seed's replay; None for directions that are no v_hack
    measures: Mapping[str, float | None]
    falls: Mapping[str, Mapping[str, float]]  # {outcome: {seed: untreated minus treated}}

    def fall(self, outcome: str) -> float | None:
        """The mean over the seeds; None without one."""
        values = list(self.falls[outcome].values())
        return float(np.mean(values)) if values else None


# What a projection removes to first order


@dataclass(frozen=True, slots=True, kw_only=True)
class _Products:
    """The inner products of an arm's directions V: all that its projection depends on."""

    pairs: Array  # (M, k, N) with the pair gradients
    kept: NDArray[np.intp]  # (M,) directions of each module
    of_step: Callable[[int], Array]  # (M, G, k) with the samples of a step, by its number

    def cosine(self, along: Array) -> float:
        """Global signed cosine of a gradient of norm 1 with V g = `along` (M, k)."""
        used = self.kept > 0
        return float((along.sum(1)[used] / np.sqrt(self.kept[used])).sum() / np.sqrt(used.sum()))


def removals(
    run: Run, linked: Linked, *, side: Side | None = None, overshoot: float = 1.0
) -> dict[str, dict[str, float | None]]:
    """{arm: measures}: of the projection along v_hack, under the name of the arm of the records, and of every control.

    Shares are 1 - <g', h> / <g, h> of the progress on held-out pairs (`margin`), on the paid hacks and on the paid
    honest solutions of the same group; None without progress.

    Args:
        run: a frozen replay with inner products.
        linked: its records and inner products.
        side: of all arms; None: each arm's own.
        overshoot: factor on what is removed.
    """
    if not linked.steps or not linked.pairs.held_out.any():
        return {}
    measured, rows = linked.steps[0].record.arm, {}
    folder = run.path / gram_dir(ARMS[measured].basis)
    controls = [path.stem.removeprefix("arm_") for path in sorted(folder.glob("arm_*.safetensors"))]
    v_hack = _along_v_hack(linked)
    for arm in (measured, *controls):
        products = v_hack if ARMS[arm].directions == "v_hack" else _along_control(folder, arm)
        rows[arm] = _removal(linked, products, v_hack if ARMS[arm].dosed else None, side or ARMS[arm].side, overshoot)
    return rows


def _along_v_hack(linked: Linked) -> _Products:
    pairs = linked.pairs
    drawn = extract(pairs, *true_labels(pairs))
    rows = drawn.rows[0]  # (M, k, N)
    return _Products(
        pairs=np.matmul(rows, pairs.pairs),
        kept=drawn.kept[0].sum(1),
        of_step=lambda step: np.matmul(linked.read(step).inner, rows.transpose(0, 2, 1)),
    )


def _along_control(folder: Path, arm: str) -> _Products:
    def stored(file: str, tensor: str) -> Array:
        return load_file(folder / f"{file}.safetensors")[tensor].astype(np.float64)

    pairs = stored(f"arm_{arm}", "pairs")
    # Modules that keep fewer directions than others are filled with rows of zeros.
    kept = np.abs(pairs).max(-1) > 0
    return _Products(pairs=pairs, kept=kept.sum(1), of_step=lambda step: stored(f"step_{step:03d}", f"along/{arm}"))


def _removal(
    linked: Linked, products: _Products, dose: _Products | None, side: Side, overshoot: float
) -> dict[str, float | None]:
    """One arm; `dose`: scale what is removed of each step to what the projection along these would remove."""
    # {target: (prompt, progress, what of it is lost) of each step that has the target}
    progress: dict[str, list[tuple[str, float, float]]] = {name: [] for name in ("margin", *SAMPLE_TARGETS)}
    cosines, hackward, squares = [], [], []
    on_pairs, along_pairs = _held_out(linked, products)
    for number, step in enumerate(linked.steps):
        gram, size = linked.read(step.record.step), linked.totals.norm[number]
        samples = products.of_step(step.record.step)  # (M, G, k)
        along = np.einsum("i,mik->mk", step.weights, samples) / size
        removed = overshoot * SIDES[side](along)
        if dose is not None:
            wanted = SIDES[side](np.einsum("i,mik->mk", step.weights, dose.of_step(step.record.step)) / size)
            norm = np.linalg.norm(removed)
            removed = removed * (overshoot * np.linalg.norm(wanted) / norm if norm > 0 else 0.0)
        cosines.append(products.cosine(along))
        hackward.append(np.linalg.norm(along.clip(min=0)))
        squares.append(np.square(removed).sum())
        lost = np.einsum("mk,mhk->h", removed, along_pairs)
        prompt = step.record.problem_id
        progress["margin"].append((prompt, float(on_pairs[number].mean()), float(lost.mean())))
        for name, chosen in SAMPLE_TARGETS.items():
            mean = rewarded_mean(linked, step, chosen)
            if mean is not None:
                norm = weighted(gram, mean[None, :]).norm[0]
                gained = float(step.weights @ gram.samples.sum(0) @ mean / (norm * size))
                progress[name].append((prompt, gained, float((removed * (mean @ samples)).sum() / norm)))
    weights = prompt_weights([step.record.problem_id for step in linked.steps])
    ceilings = [products.cosine(pair) for pair in along_pairs.swapaxes(0, 1)]
    cos_in = float(weights @ cosines)
    return {
        "cos_in": cos_in,
        "pull": _share_of_ceiling(cos_in, ceilings) if (products.kept > 0).any() else None,
        "hackward_frac": float(weights @ hackward),
        "norm_removed": float(np.sqrt(weights @ squares)),
        **{f"{name}_removed": _share_lost(rows) for name, rows in progress.items()},
    }


def _share_of_ceiling(cos_in: float, cosines: list[float]) -> float | None:
    """cos_in over the mean cosine of the held-out pairs; None unless the whole interval of that lies above 0."""
    interval = t_interval(cosines)
    return cos_in / float(np.mean(cosines)) if interval is not None and interval.low > 0 else None


def _held_out(linked: Linked, products: _Products) -> tuple[Array, Array]:
    """(T, H) cosines of the steps' gradients with the held-out differences h, and (M, H, k) V h; h has norm 1."""
    hack = np.flatnonzero(linked.pairs.held_out)
    clean = hack + len(linked.pairs.held_out)
    _, norm = held_out_margin(linked.pairs)
    inner = linked.totals.inner.sum(0)  # (T, N)
    progress = (inner[:, hack] - inner[:, clean]) / (norm * linked.totals.norm[:, None])
    along = products.pairs[:, :, hack] - products.pairs[:, :, clean]  # (M, k, H)
    return progress, along.swapaxes(1, 2) / norm[:, None]


def _share_lost(rows: Sequence[tuple[str, float, float]]) -> float | None:
    """The share of the progress that is lost, of means over prompts; None where there is no progress."""
    if not rows:
        return None
    weights = prompt_weights([prompt for prompt, _, _ in rows])
    progress = float(weights @ np.array([gained for _, gained, _ in rows]))
    return float(weights @ np.array([lost for _, _, lost in rows])) / progress if progress > 0 else None


# Runs


def replay_config(spec: Spec, name: str, seed: int) -> ReplayConfig:
    """The replay of a treatment: its model, directions and projection; vanilla reads v_hack beside its arm."""
    condition = spec.condition(name)
    arms = tuple(dict.fromkeys(("vanilla", *condition.arms)))
    intervention = replace(condition.config.intervention, arms=arms)
    shared = configure("replay", options=REPLAY)
    return replace(shared, seed=seed, intervention=intervention, model=condition.config.model)


def replay_run(spec: Spec, name: str, seed: int, out: Path) -> Path:
    """The directory of the replay of a treatment."""
    return out / "runs" / f"{spec.name}-{name}-replay-seed{seed}"


def replay_into(directory: Path, config: ReplayConfig, spec: Spec, out: Path) -> None:
    """Run a replay of a study, unless it is there."""
    if (directory / MANIFEST_FILE).is_file():
        return
    settings = out / "sweeps" / spec.name / "settings" / f"{directory.name}.json"
    write_json(settings, {"settings": asdict(config)})
    command = ["replay", "--config", str(settings), "--name", directory.name, "--out", str(out)]
    subprocess.run([sys.executable, "-m", "probe", *command], check=True)


def measures_of(run: Run) -> dict[str, float | None]:
    """MEASURES of a replay, of the arm that it holds beside vanilla; {} without steps or held-out pairs."""
    intervention = run.settings.intervention
    measured = measured_arm(intervention.arms)
    samples = [sample for sample in run.samples if sample.arm == measured]
    linked = link(run, samples, [step for step in run.steps if step.arm == measured])
    rows = removals(run, linked, side=intervention.projection.side, overshoot=intervention.projection.overshoot)
    # An arm along v_hack is measured under the name of vanilla.
    controls = [arm for arm in intervention.arms if ARMS[arm].directions != "v_hack"]
    return rows.get(controls[0] if controls else str(measured), {})


def read_treatments(spec: Spec, out: Path) -> list[Treatment]:
    """Every treatment, from the complete runs in `out`."""
    rates = {row.name: _final_rates(spec, row.name, out) for row in spec.conditions}
    rows = []
    for half, names in (("choose", CHOOSE), ("confirm", CONFIRM)):
        for name in names:
            paths = [replay_run(spec, name, seed, out) for seed in spec.seeds]
            replays = [read_run(path) for path in paths if (path / MANIFEST_FILE).is_file()]
            measured = [measures_of(run) for run in replays]
            falls: dict[str, dict[str, float]] = {outcome: {} for outcome in OUTCOMES}
            for seed in rates[UNTREATED]:
                for outcome in OUTCOMES if seed in rates[name] else ():
                    falls[outcome][seed] = rates[UNTREATED][seed][outcome] - rates[name][seed][outcome]
            verdict = None
            if replays and all(ARMS[arm].directions == "v_hack" for arm in spec.condition(name).arms):
                verdict = analyze(replays[0]).verdict.word
            means = {measure: _mean([row.get(measure) for row in measured]) for measure in MEASURES}
            rows.append(Treatment(name=name, half=half, verdict=verdict, measures=means, falls=falls))
    return rows


def _final_rates(spec: Spec, name: str, out: Path) -> dict[str, dict[str, float]]:
    """{seed: {outcome: held-out rate at the end}} of a condition's complete trainings."""
    rates = {}
    for seed in spec.seeds:
        path = out / "runs" / f"{spec.name}-{name}-{spec.condition(name).arms[0]}-seed{seed}"
        outcome = training_outcome(read_run(path)) if (path / MANIFEST_FILE).is_file() else None
        if outcome is not None:
            rates[str(seed)] = {rate: outcome.values[f"{rate}_final"] for rate in OUTCOMES}
    return rates


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one is missing."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if values and len(known) == len(values) else None


# Correlations


def spearman(x: Sequence[float], y: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Spearman's rho and its 95% interval; NaN and None where a side does not vary, None below four treatments."""
    n = len(x)
    if n < 2 or len({*x}) < 2 or len({*y}) < 2:
        return math.nan, None
    rho = float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])
    if n < 4:
        return rho, None
    # A perfect ranking of n treatments is no certainty: Fisher's z is taken one half of a rank swap away from it.
    bounded = min(max(rho, -1 + 6 / (n**3 - n)), 1 - 6 / (n**3 - n))
    half = 1.96 * math.sqrt((1 + bounded**2 / 2) / (n - 3))
    z = math.atanh(bounded)
    return rho, (math.tanh(z - half), math.tanh(z + half))


def correlate(treatments: Sequence[Treatment]) -> dict[str, Any]:
    """All correlations, and the measure that ranks the falls of hacking best in the choosing half."""
    rows = []
    for outcome in OUTCOMES:
        for measure in MEASURES:
            for which in ("all", "choose", "confirm"):
                chosen = [row for row in treatments if which in ("all", row.half)]
                pairs = [(row.measures.get(measure), row.fall(outcome)) for row in chosen]
                both = [(value, fall) for value, fall in pairs if value is not None and fall is not None]
                rho, interval = spearman([value for value, _ in both], [fall for _, fall in both])
                if not math.isnan(rho):
                    number = {"rho": rho, "interval": interval, "n": len(both)}
                    rows.append({"outcome": outcome, "measure": measure, "treatments": which, **number})
    candidates = [row for row in rows if (row["outcome"], row["treatments"]) == ("hack", "choose")]
    # A measure that some treatment lacks cannot be used for all.
    most = max((row["n"] for row in candidates), default=0)
    best = max((row for row in candidates if row["n"] == most), key=lambda row: row["rho"], default=None)
    return {"correlations": rows, "chosen": best and best["measure"]}


def _tables(treatments: Sequence[Treatment], found: Mapping[str, Any]) -> str:
    cells = {(row["measure"], row["outcome"], row["treatments"]): row for row in found["correlations"]}
    columns = (("hack", "choose"), ("hack", "confirm"), ("hack", "all"), ("solve", "all"))
    ranks = []
    for measure in MEASURES:
        name = f"{measure} (chosen)" if measure == found["chosen"] else measure
        ranks.append((name, *(_correlation(cells.get((measure, *column))) for column in columns)))
    header = ("measure", *(f"{outcome}, {half}" for outcome, half in columns))
    title = "Rank correlation over treatments with the fall of the held-out rate [95%]"
    tables = [TextTable(name="foretold", title=title, header=header, rows=ranks, left=1)]
    rows = []
    for row in treatments:
        numbers = [row.fall(outcome) for outcome in OUTCOMES] + [row.measures.get(name) for name in MEASURES]
        texts = ["-" if number is None else f"{number:+.2f}" for number in numbers]
        rows.append((row.name, row.half, row.verdict or "-", str(len(row.falls["hack"])), *texts))
    header = ("treatment", "half", "verdict", "seeds", "hack falls", "solve falls", *MEASURES)
    tables.append(TextTable(name="treatments", title="Means over seeds", header=header, rows=rows, left=3))
    return "\n\n".join([*map(render_table, tables), *_hits(treatments)])


def _correlation(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    interval = "" if row["interval"] is None else " [{:+.2f}, {:+.2f}]".format(*row["interval"])
    return f"{row['rho']:+.2f}{interval}, n {row['n']}"


def _hits(treatments: Sequence[Treatment]) -> list[str]:
    """How often each verdict of a replay was followed by a fall of the hack rate."""
    falls: dict[str, list[float]] = {}
    for row in treatments:
        fall = row.fall("hack")
        if row.verdict is not None and fall is not None:
            falls.setdefault(row.verdict, []).append(fall)
    lines = []
    for verdict, values in sorted(falls.items()):
        fell = sum(value >= MATERIAL_RATE for value in values)
        lines.append(f"{verdict}: hacking fell by {MATERIAL_RATE:g} or more in {fell} of {len(values)}")
    return lines


@click.group()
def main() -> None:
    """Replays of the treatments of foretell.toml, held against their trainings."""


@main.command("replay")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out"), show_default=True)
def replay_all(out: Path) -> None:
    """Replay every treatment with every seed."""
    spec = load_spec(SPEC)
    for seed in spec.seeds:
        for name in (*CHOOSE, *CONFIRM):
            replay_into(replay_run(spec, name, seed, out), replay_config(spec, name, seed), spec, out)


@main.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out"), show_default=True)
@click.option("--json", "as_json", is_flag=True)
def table(out: Path, as_json: bool) -> None:
    """Correlate the runs that are there."""
    treatments = read_treatments(load_spec(SPEC), out)
    found = correlate(treatments)
    if as_json:
        click.echo(orjson.dumps(found | {"treatments": treatments}).decode())
    else:
        click.echo(_tables(treatments, found))


if __name__ == "__main__":
    main()
