"""probe show: the contents of the root folder; one rollout of a run or a pool; the card of a direction file."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extraction.files import direction_names, resolve_directions
from probe.cli._frame import completing, echo, echo_json, echo_table, known
from probe.cli._settings import verb
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, elsewhere, read_run
from replay_pools.base.errors import InputError, unknown_name
from replay_pools.base.files import by_name, read_json
from replay_pools.base.tables import flat
from replay_pools.pool import BUILTIN, HEADER_NAME, MANIFEST_NAME, open_pool, resolve_pool, step_files

# Reports import numpy and scipy, too slow for a help text, so functions import them when called.
if TYPE_CHECKING:
    from probe.records.records import SampleRecord, TokenRecord
    from probe.records.run import Run
    from replay_pools.rollout import Rollout

    Row = tuple[int, int, Rollout | None, SampleRecord | None]  # step, sample, text, measurements

MOST_ROWS = 20  # in a list
SNIPPET = 56  # characters of a completion in a list
OTHER = "  tool or user | "  # prefix of a line that the policy did not write


Listed = dict[str, Any]  # {column: value} of one entry; all rows of a kind have the same columns
# {column: key in the card of directions}
CARD = {
    **{"basis": "basis", "pairs": "pairs", "method": "settings.method", "sides": "settings.sides", "k": "settings.k"},
    **{"directions": "num_directions", "modules": "num_modules"},
}


def _list_stored(out: Path, kind: str | None, as_json: bool) -> None:
    """Print the contents of OUT: one kind, or all."""
    tables = {name: rows_of(out) for name, rows_of in KINDS.items() if kind in (None, name)}
    if as_json:
        echo_json(tables)
        return
    for name, rows in tables.items():
        if rows:
            echo_table((name, *list(rows[0])[1:]), [[_shown(value) for value in row.values()] for row in rows])
            echo()
    if missing := [name for name, rows in tables.items() if not rows]:
        echo(f"none in {out}: {', '.join(missing)}")


def list_pools(out: Path) -> list[Listed]:
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


def list_directions(out: Path) -> list[Listed]:
    """List the direction files in OUT/directions, from their cards."""
    cards = {name: _table(out / "directions" / f"{name}.card.json") for name in direction_names(out)}
    return [{"name": name, **{column: card.get(key) for column, key in CARD.items()}} for name, card in cards.items()]


def list_runs(out: Path) -> list[Listed]:
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


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


# To add a kind, add its function here. Files are read without checks: a damaged file does not hide the others.
KINDS: dict[str, Callable[[Path], list[Listed]]] = {
    "pools": list_pools,
    "directions": list_directions,
    "runs": list_runs,
}


@verb()
@click.argument(
    "source",
    metavar="[RUN|POOL|DIRECTIONS|KIND]",
    required=False,
    shell_complete=completing(lambda out: [*KINDS, *known(out)]),
)
@click.argument("step", required=False, type=click.IntRange(0))
@click.argument("sample", required=False, type=click.IntRange(0))
def show(source: str | None, step: int | None, sample: int | None, out: Path, as_json: bool) -> None:
    """Without an argument: what is in OUT, finished or not; with a KIND (pools, directions, runs) that alone.

    Of a RUN or a POOL one rollout: prompt, completion, labels, detectors, and of a run its cosines in every arm. STEP
    and SAMPLE are the numbers of a row in the page of `probe report`. Without SAMPLE the rollouts of the step are
    listed, without STEP those that push the update most. Where the run recorded shares of tokens, every line of the
    completion has its share beside it.

    Of DIRECTIONS (a file, or a name in OUT/directions) the card that `probe extract` wrote, checked against its file.

    Examples:

      probe show runs

      probe show demo 3 2

      probe show v_hack
    """
    if source is None or source in KINDS:
        _list_stored(out, source, as_json)
        return
    run = by_name(Path(source), out / "runs" / source)
    file = by_name(Path(source), out / "directions" / f"{source}.safetensors")
    if (run / CONFIG_FILE).is_file():
        _show_run(source, read_run(run), step, sample, out, as_json)
    elif file.is_file() or file.suffix == ".safetensors":
        from probe.cli.extract import show_directions

        show_directions(resolve_directions(source, out), as_json)
    else:
        _show_pool(source, _pool(source, out), step, sample, out, as_json)


def _pool(source: str, out: Path) -> Path:
    """Return the directory of a pool; raise InputError with all known names if it does not exist."""
    try:
        return resolve_pool(source, out)
    except InputError as error:
        if "/" in source:  # a path: the error already explains the fault
            raise
        expected = f"a run, a pool or directions in {out}"
        raise unknown_name(source, source, known(out), expected=expected, fix="probe show lists all") from error


def _show_run(source: str, run: "Run", step: int | None, sample: int | None, out: Path, as_json: bool) -> None:
    """Print one rollout with its measurements in every arm and condition, or list rollouts.

    The list has the rollouts of a step, or of all steps by decreasing |cosine|, in the arm that measures v_hack.
    """
    from probe.analysis.verdict.pools import read_pools
    from probe.records.run import read_tokens
    from probe.settings.arms import measured_arm

    arms = list(dict.fromkeys(record.arm for record in run.samples))
    arm = measured_arm(arms) or arms[0]
    condition = next(record.condition for record in run.samples if record.arm == arm)
    records = [record for record in run.samples if (record.arm, record.condition) == (arm, condition)]
    if step is None:
        records.sort(key=lambda record: -abs(record.cos_S_contrib or 0.0))
    stored, missing = read_pools(run)
    rows: list[Row] = []
    for record in records:
        rollout = stored.get((record.src_pool, record.src_step, record.src_sample))
        rows.append((record.step, record.sample_id, rollout, record))
    rows = _wanted(run.path, rows, step, sample)
    _, _, rollout, first = rows[0]
    assert first is not None
    if step is None or sample is None:
        _list(source, rows, out, as_json)
        return
    if rollout is None:
        raise InputError(
            run.path, expected=f"the pool {first.src_pool}", found=missing.get(first.src_pool) or "another one"
        )
    of_rollout = [record for record in run.samples if (record.step, record.sample_id) == (step, sample)]
    tokens = read_tokens(run.path, run.manifest).get((step, sample))
    if as_json:
        shares = None if tokens is None else asdict(tokens)
        records_json = [record.to_json() for record in of_rollout]
        echo_json({"run": str(run.path), "rollout": asdict(rollout), "records": records_json, "tokens": shares})
        return
    place = f"{first.src_pool} step {first.src_step} sample {first.src_sample}"
    _print(f"run {run.path.name}, step {step}, sample {sample} (from {place})", rollout, of_rollout[0], tokens)
    echo()
    _print_cosines(of_rollout)


def _show_pool(source: str, path: Path, step: int | None, sample: int | None, out: Path, as_json: bool) -> None:
    """Print one rollout of a pool, or list its rollouts."""
    pool = open_pool(path)
    rollouts = [rollout for group in pool.steps for rollout in group]
    rows = _wanted(path, [(rollout.step, rollout.sample_id, rollout, None) for rollout in rollouts], step, sample)
    rollout = rows[0][2]
    assert rollout is not None
    if step is None or sample is None:
        _list(source, rows, out, as_json)
    elif as_json:
        echo_json({"pool": str(path), "rollout": asdict(rollout)})
    else:
        _print(f"pool {pool.name}, step {step}, sample {sample}", rollout, None, None)


def _wanted(place: Path, rows: "Sequence[Row]", step: int | None, sample: int | None) -> "list[Row]":
    """Return the rows of a step and sample; raise InputError with the existing numbers if there are none."""
    of_step = [row for row in rows if step in (None, row[0])]
    found = [row for row in of_step if sample in (None, row[1])]
    if found:
        return found
    what, number = ("SAMPLE", sample) if of_step else ("STEP", step)
    known = sorted(row[1] for row in of_step) or sorted(row[0] for row in rows)
    raise InputError(f"{place} {what}", expected=f"{known[0]} to {known[-1]}", found=str(number))


def _list(source: str, rows: "Sequence[Row]", out: Path, as_json: bool) -> None:
    """Print one line per rollout, and how to show one of them."""
    from probe.report.facts import gist_of, labels_of

    shown = []
    for step, sample, rollout, record in rows:
        labelled = rollout if record is None else record
        assert labelled is not None
        shown.append(
            {
                "step": step,
                "sample": sample,
                "hacked": labelled.hacked,
                "gt_pass": labelled.gt_pass,
                "reward": labelled.reward,
                "cos_S_contrib": None if record is None else record.cos_S_contrib,
                "completion": None if rollout is None else gist_of(rollout, " | "),
            }
        )
    if as_json:
        echo_json({"name": Path(source).name, "rollouts": shown})
        return
    cells = []
    for row in shown[:MOST_ROWS]:
        cosine = "-" if row["cos_S_contrib"] is None else f"{row['cos_S_contrib']:+.3f}"
        labels = " ".join(labels_of(row["hacked"], row["gt_pass"]))
        text = (row["completion"] or "-")[:SNIPPET].ljust(SNIPPET)
        cells.append((f"{row['step']} {row['sample']}", labels, f"{row['reward']:g}", cosine, text))
    name = shlex.quote(source)
    echo_table(("step sample", "labels", "reward", "cos_S_contrib", "completion".ljust(SNIPPET)), cells)
    if len(shown) > MOST_ROWS:
        echo(f"{len(shown) - MOST_ROWS} more; the rollouts of one step: probe show {name} STEP{elsewhere(out)}")
    echo(f"one of them: probe show {name} {shown[0]['step']} {shown[0]['sample']}{elsewhere(out)}")


def _print(title: str, rollout: "Rollout", record: "SampleRecord | None", tokens: "TokenRecord | None") -> None:
    from probe.report.facts import facts_of, question_of, tags_of

    echo(f"{title}: {', '.join(tags_of(rollout))}")
    echo("\nPROMPT (last message of the user)")
    echo(_indented(question_of(rollout)))
    echo("\nCOMPLETION" if tokens is None else "\nCOMPLETION, with the share of each line in the likelihood cosine")
    echo(_with_shares(rollout, tokens))
    echo()
    for name, sentence in facts_of(rollout, record):
        echo(f"{name:<10} {sentence}")


def _with_shares(rollout: "Rollout", tokens: "TokenRecord | None") -> str:
    """Return the completion; if shares were recorded, each line has its share on the left."""
    from probe.report.rollouts import line_shares

    if tokens is None or tokens.completion is None or tokens.completion_chars is None:
        turns = rollout.turns
        return "\n".join(_indented(text) if own else _indented(text.strip("\n"), OTHER) for own, text in turns)
    lines = [(line, share) for line, share in line_shares(rollout, tokens) if share is not None or line]
    return "\n".join(f"{OTHER}{line}" if share is None else f"  {share:+.4f}  {line}" for line, share in lines)


def _indented(text: str, margin: str = "  ") -> str:
    return "\n".join(f"{margin}{line}" for line in text.split("\n"))


def _print_cosines(records: "Sequence[SampleRecord]") -> None:
    """Print the measurements of every arm on the rollout."""
    several = len({record.condition for record in records}) > 1
    rows = []
    for record in records:
        name = f"{record.arm} / {record.condition}" if several else record.arm
        numbers: list[float | None] = [record.advantage, record.cos_S_contrib, record.cos_S_nll]
        numbers += [record.grad_norm_contrib, record.mean_cos_in, record.mean_cos_out]
        rows.append((name, *("-" if number is None else f"{number:+.4f}" for number in numbers)))
    header = ("arm", "A", "cos_S_contrib", "cos_S_nll", "norm(A g)", "mean_cos_in", "mean_cos_out")
    echo_table(header, rows)
