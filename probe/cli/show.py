"""probe show: the contents of the root folder; one rollout of a run or a pool; the card of a direction file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extraction.settings import direction_names, resolve_directions
from probe.analysis.formatting import shown
from probe.cli._frame import Table, Text, command, plain
from probe.cli._settings import verb
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, read_run, run_names
from replay_pools.base.errors import InputError, unknown_name
from replay_pools.base.files import by_name, read_json
from replay_pools.base.tables import flat
from replay_pools.pool import BUILTIN, HEADER_NAME, MANIFEST_NAME, open_pool, pool_names, resolve_pool, step_files

# Reports import numpy and scipy, too slow for a help text, so functions import them when called.
if TYPE_CHECKING:
    from probe.records.records import SampleRecord, TokenRecord
    from probe.records.run import Run
    from replay_pools.rollout import Rollout

    # Step, sample, text (None: not at hand) and measurements (None: of a pool).
    Row = tuple[int, int, Rollout | None, SampleRecord | None]

MOST_ROWS = 20  # in a list
SNIPPET = 56  # characters of a completion in a list
STATES = ("unfinished", "finished")
OTHER = "  tool or user | "  # prefix of a line that the policy did not write
# {column: key in the card of directions}
CARD = {
    **{"basis": "basis", "pairs": "pairs", "method": "settings.method", "sides": "settings.sides", "k": "settings.k"},
    **{"directions": "num_directions", "modules": "num_modules"},
}
# {column: field of the records of an arm}
MEASURES = {
    **{"A": "advantage", "cos_S_contrib": "cos_S_contrib", "cos_S_nll": "cos_S_nll", "norm(A g)": "grad_norm_contrib"},
    **{"mean_cos_in": "mean_cos_in", "mean_cos_out": "mean_cos_out"},
}


def list_pools(out: Path) -> Iterator[dict[str, Any]]:
    """List the pools in OUT/pools, then the built-in pools with other names."""
    made = _folders(out / "pools")
    for path in [*made, *(path for path in _folders(BUILTIN) if path.name not in {each.name for each in made})]:
        is_finished = (path / MANIFEST_NAME).is_file()
        header = _table(path / (MANIFEST_NAME if is_finished else HEADER_NAME))
        yield {
            "name": path.name,
            "groups": header.get("counts.steps", len(step_files(path))),
            "rollouts": header.get("counts.rollouts"),
            "policy": " + ".join(filter(None, map(header.get, ("policy.base_model", "policy.adapter")))) or None,
            "mode": header.get("plan.mode"),
            "hint": header.get("plan.hint"),
            "place": "built in" if path.parent == BUILTIN else str(path),
            "state": STATES[is_finished],
        }


def list_directions(out: Path) -> Iterator[dict[str, Any]]:
    """List the direction files in OUT/directions, from their cards."""
    for name in direction_names(out):
        card = _table(out / "directions" / f"{name}.card.json")
        yield {"name": name, **{column: card.get(key) for column, key in CARD.items()}}


def list_runs(out: Path) -> Iterator[dict[str, Any]]:
    """List the replays and trainings in OUT/runs."""
    for path in _folders(out / "runs"):
        config, manifest = _table(path / CONFIG_FILE), path / MANIFEST_FILE
        yield {
            "name": path.name,
            "verb": config.get("settings.verb"),
            "steps": len(list(path.glob("step_*.cos.jsonl.gz"))),
            "of": config.get("settings.steps"),  # null: all groups of the pools
            "arms": config.get("settings.intervention.arms"),
            "seed": config.get("settings.seed"),
            "state": "stopped early" if _table(manifest).get("stopped") else STATES[manifest.is_file()],
        }


def _folders(place: Path) -> list[Path]:
    """Return the folders in a place, sorted, without hidden (unfinished) ones."""
    return sorted(path for path in place.glob("*/") if not path.name.startswith((".", "_")))


def _table(path: Path) -> Mapping[str, Any]:
    """Return {key with dots: value} of a JSON file; empty for a missing or broken file."""
    with suppress(InputError, OSError):
        if isinstance(value := read_json(path), dict):
            return flat(value)
    return {}


# To add a kind, add its function here, which yields rows {column: value} with the same columns. Files are read without
# checks: a damaged file does not hide the others.
KINDS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "pools": list_pools,
    "directions": list_directions,
    "runs": list_runs,
}


@verb()
@click.argument("source", metavar="[RUN|POOL|DIRECTIONS|KIND]", required=False)
@click.argument("step", required=False, type=click.IntRange(0))
@click.argument("sample", required=False, type=click.IntRange(0))
def show(source: str | None, step: int | None, sample: int | None, out: Path) -> Text:
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
        return (yield from _list_stored(out, KINDS if source is None else [source]))
    folder = by_name(Path(source), out / "runs" / source)
    file = by_name(Path(source), out / "directions" / f"{source}.safetensors")
    run = read_run(folder) if (folder / CONFIG_FILE).is_file() else None
    if run is None and (file.is_file() or file.suffix == ".safetensors"):
        from probe.cli.extract import described_card
        from probe.runs.arm_directions import read_card

        card = read_card(file := resolve_directions(source, out))
        yield from described_card(file, card)
        return card
    if run is not None:
        place, every = folder, _rows_of(run, by_cosine=step is None)
    else:
        pool = open_pool(_pool(source, out))
        place, every = pool.path, [(one.step, one.sample_id, one, None) for group in pool.steps for one in group]
    of_step = [row for row in every if step in (None, row[0])]
    rows = [row for row in of_step if sample in (None, row[1])]
    if not rows:
        what, number = ("SAMPLE", sample) if of_step else ("STEP", step)
        numbers = sorted(row[1] for row in of_step) or sorted(row[0] for row in every)
        raise InputError(f"{place} {what}", expected=f"{numbers[0]} to {numbers[-1]}", found=str(number))
    if sample is None:
        return (yield from _list(source, rows))
    ((_, _, rollout, record),) = rows
    if run is not None and record is not None:
        return (yield from _measured(run, rollout, record))
    assert rollout is not None
    yield from _described(f"pool {place.resolve().name}, step {step}, sample {sample}", rollout, None, None)
    return {"pool": str(place), "rollout": asdict(rollout)}


def _list_stored(out: Path, kinds: Sequence[str] | Mapping[str, Any]) -> Text:
    """Yield the contents of OUT, a table a kind; return the rows of each."""
    tables = {kind: [*KINDS[kind](out)] for kind in kinds}
    for kind, rows in tables.items():
        if rows:
            yield Table((kind, *list(rows[0])[1:]), [[*map(plain, row.values())] for row in rows])
            yield ""
    if missing := [kind for kind, rows in tables.items() if not rows]:
        yield f"none in {out}: {', '.join(missing)}"
    return tables


def _pool(source: str, out: Path) -> Path:
    """Return the directory of a pool; raise InputError with all known names if it does not exist."""
    try:
        return resolve_pool(source, out)
    except InputError as error:
        if "/" in source:  # a path: the error already explains the fault
            raise
        expected = f"a run, a pool or directions in {out}"
        known = [*run_names(out / "runs"), *pool_names(out), *direction_names(out)]
        raise unknown_name(source, source, known, expected=expected, fix="probe show lists all") from error


def _rows_of(run: "Run", *, by_cosine: bool) -> "list[Row]":
    """Return the rollouts of a run in the arm that measures v_hack; `by_cosine`: by falling |cosine|."""
    from probe.analysis.verdict.pools import read_pools
    from probe.settings.arms import measured_arm

    arms = list(dict.fromkeys(record.arm for record in run.samples))
    arm = measured_arm(arms) or arms[0]
    condition = next(record.condition for record in run.samples if record.arm == arm)
    records = [record for record in run.samples if (record.arm, record.condition) == (arm, condition)]
    if by_cosine:
        records.sort(key=lambda record: -abs(record.cos_S_contrib or 0.0))
    stored, _ = read_pools(run)
    places = [(record.src_pool, record.src_step, record.src_sample) for record in records]
    return [(one.step, one.sample_id, stored.get(at), one) for one, at in zip(records, places, strict=True)]


def _measured(run: "Run", rollout: "Rollout | None", record: "SampleRecord") -> Text:
    """Yield one rollout of a run with its measurements in every arm and condition."""
    from probe.analysis.verdict.pools import read_pools
    from probe.records.run import read_tokens

    if rollout is None:
        why = read_pools(run)[1].get(record.src_pool) or "another one"
        raise InputError(run.path, expected=f"the pool {record.src_pool}", found=why)
    at = record.step, record.sample_id
    records = [one for one in run.samples if (one.step, one.sample_id) == at]
    tokens = read_tokens(run.path, run.manifest).get(at)
    place = f"{record.src_pool} step {record.src_step} sample {record.src_sample}"
    yield from _described(
        f"run {run.path.name}, step {at[0]}, sample {at[1]} (from {place})", rollout, records[0], tokens
    )
    yield ""
    several = len({one.condition for one in records}) > 1
    names = [f"{one.arm} / {one.condition}" if several else one.arm for one in records]
    numbers = [[shown(getattr(one, field), "+.4f") for field in MEASURES.values()] for one in records]
    yield Table(("arm", *MEASURES), [(name, *row) for name, row in zip(names, numbers, strict=True)])
    document = {"run": str(run.path), "rollout": asdict(rollout), "records": [one.to_json() for one in records]}
    return {**document, "tokens": None if tokens is None else asdict(tokens)}


def _list(source: str, rows: "Sequence[Row]") -> Text:
    """Yield one line per rollout, and how to show one of them; return them."""
    from probe.report.facts import gist_of, labels_of

    listed, cells = [], []
    for step, sample, rollout, record in rows:
        labelled = record or rollout
        assert labelled is not None
        labels = {"hacked": labelled.hacked, "gt_pass": labelled.gt_pass}
        cosine, text = record and record.cos_S_contrib, rollout and gist_of(rollout, " | ")
        row = {"step": step, "sample": sample, **labels, "reward": labelled.reward}
        listed.append({**row, "cos_S_contrib": cosine, "completion": text})
        numbers = f"{labelled.reward:g}", shown(cosine, "+.3f")
        gist = (text or "-")[:SNIPPET].ljust(SNIPPET)
        cells.append((f"{step} {sample}", " ".join(labels_of(**labels)), *numbers, gist))
    header = ("step sample", "labels", "reward", "cos_S_contrib", "completion".ljust(SNIPPET))
    yield Table(header, cells[:MOST_ROWS])
    if len(cells) > MOST_ROWS:
        yield f"{len(cells) - MOST_ROWS} more; the rollouts of one step: {command('show', source, 'STEP')}"
    yield f"one of them: {command('show', source, *rows[0][:2])}"
    return {"name": Path(source).name, "rollouts": listed}


def _described(
    title: str, rollout: "Rollout", record: "SampleRecord | None", tokens: "TokenRecord | None"
) -> Iterator[str]:
    """Yield prompt, completion (each line with its share, if shares were recorded) and facts of a rollout."""
    from probe.report.evidence import line_shares
    from probe.report.facts import facts_of, question_of, tags_of

    yield f"{title}: {', '.join(tags_of(rollout))}"
    yield f"\nPROMPT (last message of the user)\n{_indented(question_of(rollout))}"
    if tokens is None or tokens.completion is None or tokens.completion_chars is None:
        turns = rollout.turns
        yield "\nCOMPLETION"
        yield "\n".join(_indented(text) if is_own else _indented(text.strip("\n"), OTHER) for is_own, text in turns)
    else:
        yield "\nCOMPLETION, with the share of each line in the likelihood cosine"
        for line, share in line_shares(rollout, tokens):
            if share is not None or line:
                yield f"{OTHER}{line}" if share is None else f"  {share:+.4f}  {line}"
    yield ""
    for name, sentence in facts_of(rollout, record):
        yield f"{name:<10} {sentence}"


def _indented(text: str, margin: str = "  ") -> str:
    return "\n".join(f"{margin}{line}" for line in text.split("\n"))
