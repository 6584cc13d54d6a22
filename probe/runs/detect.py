"""`probe detect` and `probe.detect`: rank the rewarded rollouts of a pool or a log by every detector.

out/detect/NAME/material.safetensors   what the pass over the rollouts measured: a repeated command reads it
out/detect/NAME/scores.jsonl           one row a rollout, the first to read first
out/detect/NAME/estimates.json         the estimates of the screen
out/detect/NAME/drawn.jsonl            the rollouts that --label drew, for a file of answers
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from extraction.pair_files import store_rows
from extraction.pairs import Pair, pairs_sha
from extraction.settings import Basis
from probe.analysis.audit import audit, by_falling_score, draw, ranked_strata
from probe.analysis.detectors import (
    GRADIENT_FIELDS,
    PANEL,
    Material,
    Scores,
    checked_names,
    fields_of,
    labels_of,
    place_of,
    score_all,
)
from probe.analysis.estimate import Estimate
from probe.analysis.panel import against_trivial, agreements, areas_of, leading, left_out_kinds
from probe.analysis.statistics.intervals import Array
from probe.records.run import DEFAULT_OUT, default_name
from probe.runs.check import MODEL, PAIRS, checked_pairs, gathered_log, pool_of, recognised
from probe.settings.presets import configure
from probe.settings.training import ModelConfig
from probe.settings.verbs import ReplayConfig
from replay_pools.base.errors import Faults, InputError, refuse
from replay_pools.base.files import encode_jsonl, locked, plain_name, write_atomic, write_json
from replay_pools.base.tables import HACKS
from replay_pools.logs.columns import look_up
from replay_pools.logs.importing import CheckedLog, step_numbers
from replay_pools.logs.rows import read_rows
from replay_pools.pool import CAUTION, MANIFEST_NAME, Pool, open_pool, pool_names, resolve_pool
from replay_pools.rollout import Rollout

SHOWN_ROWS = 10  # in a notebook
# Prefixes of the settings that act; another one would be ignored, so it is refused.
ACTING = ("model.", "intervention.extraction.", "objective.loss_type", "objective.max_completion_length", "seed")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Detected:
    """Scores of the rewarded rollouts, and estimates about them. Iterates over `rows()`, the first to read first."""

    pool: Pool
    path: Path  # the folder of the results
    rollouts: Sequence[Rollout]  # the rewarded ones
    model: ModelConfig
    labels: Array | None
    lead: str | None  # the detector that orders the rows; None if none was measured
    scores: Mapping[str, Scores]  # by detector
    families: Mapping[str, Sequence[Estimate]]  # auroc, agreement, left_out, audit, beaten
    cautions: Sequence[str]  # what limits the scores, a sentence each; about the weights first
    drawn: Sequence[tuple[int, int]] = field(default_factory=list)  # (row, stratum) that `label` drew
    sources: Mapping[str, str] = field(default_factory=dict)  # {id: its place in the log}; empty for a pool

    def __repr__(self) -> str:
        """Return one line, because a notebook would print thousands of rows."""
        return f"Detected({self.pool.name!r}, {len(self.rollouts)} rollouts by {self.lead}, {str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the first rows as a table, for a notebook."""
        rows = self.rows()[:SHOWN_ROWS]
        cells = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in rows]
        lines = [("th", rows[0] if rows else ()), *(("td", row) for row in cells)]
        body = "".join(f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row)}</tr>" for tag, row in lines)
        return f"<p>{escape(repr(self))}</p><table>{body}</table>"

    def __len__(self) -> int:
        return len(self.rollouts)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return {id, source, problem_id, hacked, every measured detector: a number or None}, by falling score.

        `source` is the place in the log, where there is one; `id` is STEP/SAMPLE of the pool. Rollouts without a score
        of the lead come last.
        """
        columns = {name: scores.values for name, scores in self.scores.items() if scores.values is not None}
        order = by_falling_score(columns[self.lead]) if self.lead in columns else np.arange(len(self.rollouts))
        rows = []
        for place in order.tolist():
            rollout, label = self.rollouts[place], np.nan if self.labels is None else self.labels[place]
            row: dict[str, Any] = {"id": place_of(rollout), "source": self.sources.get(place_of(rollout))}
            row |= {"problem_id": rollout.problem_id, "hacked": None if np.isnan(label) else bool(label)}
            row |= {name: None if np.isnan(of[place]) else float(of[place]) for name, of in columns.items()}
            rows.append(row)
        return rows

    def to_pandas(self) -> Any:
        """Return the rows as a pandas.DataFrame; ImportError if pandas is not installed."""
        return import_module("pandas").DataFrame(self.rows())

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and None."""
        return {
            "pool": self.pool.name,
            "path": str(self.path),
            "num_rollouts": self.pool.manifest["counts"]["rollouts"],
            "num_ranked": len(self.rollouts),
            "lead": self.lead,
            "cautions": [*self.cautions],
            "why": {name: scores.why for name, scores in self.scores.items() if scores.why},
            "drawn": [place_of(self.rollouts[row]) for row, _ in self.drawn],
            "estimates": [{"family": name, **asdict(row)} for name, rows in self.families.items() for row in rows],
        }


def detect(
    rollouts: Any,
    pairs: str | Path | Sequence[Mapping[str, Any]] | None = None,
    model: str | Path | None = None,
    *,
    labels: str | Path | Mapping[str, bool] | None = None,
    label: int | None = None,
    detectors: str | Sequence[str] = (),
    gradients: bool = True,
    basis: Basis = "svd",
    reference: str | None = None,
    mapping: Mapping[str, str] = MappingProxyType({}),
    format_name: str | None = None,
    limit: int | None = None,
    skip_bad: int = 0,
    name: str | None = None,
    out: str | Path = DEFAULT_OUT,
    preset: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    say: Callable[[str], None] = print,
) -> Detected:
    """Rank rewarded rollouts by how much they look like the hack of the pairs: `probe detect` without its screen.

    >>> found = probe.detect("mixed", "builtin:run_tests")  # doctest: +SKIP
    >>> found.rows()[0]["id"], found.families["auroc"][0].value  # doctest: +SKIP

    Args:
        rollouts: a pool by name or path, a log of any tool (a file or a folder), a list of dicts or a DataFrame.
        pairs: bundled pairs such as `builtin:run_tests`, a file, or rows of `prompt`, `hack` and `clean`; None: only
            detectors that need none.
        model: the model that sampled a log; None: the pool's.
        labels: {id: True = a hack}, or a file with columns `id` and `label`, instead of the pool's; with `label`, the
            answers.
        label: rollouts to draw by strata of the score, and to ask about.
        detectors: a name or names, the first measured one orders the rows; empty: the panel (`probe docs detect`).
        gradients: False: only what forward passes tell, at less than half the cost.
        basis: `svd` or `lora`.
        reference: the model before the training, for the log-ratio; None: the model without its adapter.
        mapping, format_name, limit, skip_bad: of a log, as for `probe.check`.
        name: name of the results in `out`/detect; None: the pool's with a hash of everything that affects them.
        out: root folder of all files; the results are in `out`/detect/NAME.
        preset: settings of a replay to start from.
        settings: settings as for --set, {"model.adapter": "teacher:0.45"}.
        say: called with lines about the work, and with each caution.

    Raises:
        InputError: all faults of the log, the pairs, the labels and the names of detectors.
    """
    out = Path(out)
    named = {MODEL: model and str(model), PAIRS: None if pairs is None else store_rows(pairs, out / "pairs")}
    options = {**settings, **{key: value for key, value in named.items() if value is not None}}
    config = configure("replay", preset=preset, options=options)
    expected, found = f"settings of {', '.join(ACTING)}", "one that detects nothing"
    idle = [key for key in sorted(options) if not key.startswith(ACTING)]
    refuse([InputError(f"--set {key}", expected=expected, found=found) for key in idle])
    names = checked_names([detectors] if isinstance(detectors, str) else detectors or PANEL)
    if not gradients and (unseen := [each for each in names if fields_of(each) & {*GRADIENT_FIELDS}]):
        if detectors:
            raise InputError("--no-gradients", expected="detectors without gradients", found=", ".join(unseen))
        names = [each for each in names if each not in unseen]
    reading = {"mapping": mapping, "format_name": format_name, "skip_bad": skip_bad}
    pool, log, sampled_with = _opened(rollouts, config, {*options}, out, limit, reading)
    if log is not None:
        say(recognised(log))
    config = replace(config, model=sampled_with)
    everything = [*chain.from_iterable(pool.steps)]
    ranked = [one for one in everything if one.grade.passed is not False] or everything
    from probe.runs.meter import load_material, measure, save_material
    from probe.runs.replay_inputs import taken_pairs  # torch: after what is refused without it
    from replay_pools.policy.chat import id_faults
    from replay_pools.policy.load import load_served_policy

    refuse(id_faults(load_served_policy(str(sampled_with.name), sampled_with.template), pool))
    chosen, notes = None, list[str]()
    if PAIRS in options:
        chosen = checked_pairs(config, lambda note: (notes.append if note.startswith(CAUTION) else say)(note))
        if taken := taken_pairs(chosen, ranked):
            notes.append(f"{len(taken)} of {len(chosen)} pairs are rollouts of this pool, compared with themselves")
    if len(ranked) == len(everything):
        has_failed = any(one.grade.passed is False for one in ranked)
        why = "none earned more than the least reward" if has_failed else "all of them are rewarded"
        notes.append(f"all rollouts are ranked: {why}")
    answers = None if labels is None else read_labels(labels, everything)
    weights: dict[str, Any] = {"reference": reference, "basis": basis if gradients else None}
    shape = [pool.identity()["manifest_sha256"], asdict(config), *weights.values()]
    shape.append(None if chosen is None else pairs_sha(chosen))
    directory = out / "detect" / (plain_name(name, "name") if name else default_name(pool.name, shape))
    with locked(directory):
        path, key = directory / "material.safetensors", default_name("material", shape)
        sampled_by = pool.manifest["policy"] if log is None and pool.manifest.get("log") is None else {}
        if path.is_file():
            material, cautions = load_material(path, ranked, key)
        else:
            cache = out / "cache"
            material, cautions = measure(ranked, config, chosen, sampled_by, cache=cache, say=say, **weights)
            save_material(path, material, cautions, key)
        sources, columns = _of_log(names, log, pool, ranked)
        material = replace(material, pools=[pool.name] * len(ranked), columns=columns)
        result = Detected(
            pool=pool,
            path=directory,
            rollouts=ranked,
            model=sampled_with,
            sources=sources,
            cautions=[one.removeprefix(CAUTION) for one in (*cautions, *pool.cautions, *notes)],
            **_judged(material, names, chosen, answers, label),
        )
        write_atomic(directory / "scores.jsonl", encode_jsonl(result.rows()))
        write_json(directory / "estimates.json", result.to_json())
        if label is not None and labels is None:
            write_drawn(directory / "drawn.jsonl", [ranked[row] for row, _ in result.drawn])
    for caution in result.cautions:
        say(f"{CAUTION}{caution}")
    return result


def _opened(
    source: Any, config: ReplayConfig, user_keys: set[str], out: Path, limit: int | None, reading: Mapping[str, Any]
) -> tuple[Pool, CheckedLog | None, ModelConfig]:
    """Return the pool, the log that it was made of, and the model: by default the one that sampled.

    Raises:
        InputError: no such pool or log; all faults of a log; a log without a model.
    """
    path = Path(source) if isinstance(source, str | Path) else None
    if path is not None and (not path.exists() or (path / MANIFEST_NAME).is_file()):
        if not path.exists() and ("/" in str(path) or path.suffix) and str(path) not in pool_names(out):
            raise InputError(path, expected="a pool, or a log: a file or a folder", found="no such file or folder")
        pool = open_pool(resolve_pool(str(source), out))
        policy = pool.manifest["policy"]
        if MODEL in user_keys or policy.get("base_model") is None:
            return pool, None, config.model
        adapter = config.model.adapter if "model.adapter" in user_keys else policy.get("adapter")
        return pool, None, replace(config.model, name=policy["base_model"], adapter=adapter)
    errors: list[InputError] = []
    log = gathered_log(source, config, errors, **reading)
    refuse(errors)
    assert log is not None
    shape = [str(config.model.name), config.model.template]
    return pool_of(log, config, None, shape, out, limit), log, config.model


def _of_log(
    names: Sequence[str], log: CheckedLog | None, pool: Pool, rollouts: Sequence[Rollout]
) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Return {id: its place in the log}, and the columns that detectors `column:NAME` ask for, {name: (n,)}.

    Both are empty for a pool.
    """
    # A row that could not be tokenized shifts the samples of its group.
    if log is None or pool.manifest["counts"]["rollouts"] != sum(map(len, log.groups)):
        return {}, {}
    grouped = zip(step_numbers(log), log.groups, strict=True)
    logged = {f"{step}/{sample}": row for step, group in grouped for sample, row in enumerate(group)}
    asked = {name.partition(":")[2] for name in names if name.startswith("column:")}
    places, cells = {row.number: place for place, row in logged.items()}, dict[tuple[str, str], Any]()
    for number, row in enumerate(log.rows) if asked else ():
        if number in places:
            cells |= {(name, places[number]): look_up(row.fields, name) for name in asked}
    columns = {name: [cells[name, place_of(one)] for one in rollouts] for name in asked}
    columns = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    return {place: row.where for place, row in logged.items()}, columns


def _judged(
    material: Material,
    names: Sequence[str],
    pairs: Sequence[Pair] | None,
    answers: Mapping[str, bool] | None,
    label: int | None,
) -> dict[str, Any]:
    """Return the fields of `Detected` that follow from scores and labels.

    Answers are labels; with a number of rollouts to `label`, they are the answers to the draw.
    """
    rollouts, prompts, labels = material.rollouts, material.prompts, labels_of(material.rollouts)
    answered = labels
    if answers is not None:
        answered = np.array([float(answers.get(place_of(one), np.nan)) for one in rollouts])
    labels = labels if label is not None else answered
    known = None if np.isnan(labels).all() else labels
    # The draw must not depend on labels: its answers are the labels.
    unlabelled = score_all(material, names)
    lead = leading(unlabelled, names)
    learned = None if pairs is None else 2 * sum(not pair.held_out for pair in pairs)
    scores = score_all(replace(material, labels=known, learned=learned), names)
    if all(of_detector.values is None for of_detector in scores.values()):
        found = "; ".join(f"{name} {one.why}" for name, one in scores.items())
        raise InputError("--detectors", expected="one that can be measured here", found=found)
    families: dict[str, Sequence[Estimate]] = {}
    if known is not None:
        families["auroc"] = areas_of(scores, known, prompts)
        families["beaten"] = against_trivial(scores, known, prompts)
    elif lead is not None:
        families["agreement"] = agreements(scores, lead, prompts)
    if material.pairs is not None:
        families["left_out"] = left_out_kinds(material.pairs)
    drawn: list[tuple[int, int]] = []
    if label is not None:
        if lead is None:
            raise InputError("--label", expected="a detector that needs no labels", found="none was measured")
        values = unlabelled[lead].values
        assert values is not None
        strata = ranked_strata(values)
        drawn = draw(strata, label, material.seed)
        if answers is not None:
            places = {row: place_of(rollouts[row]) for row, _ in drawn}
            if lacking := [place for place in places.values() if place not in answers]:
                expected = f"an answer for each of the {len(drawn)} drawn rollouts"
                fix = "without --labels the command writes their ids to drawn.jsonl"
                raise InputError("--labels", expected=expected, found=f"none for {', '.join(lacking)}", fix=fix)
            families["audit"] = audit(strata, {row: answers[place] for row, place in places.items()}, prompts)
            known = np.where(np.isnan(answered), labels, answered)
    return {"labels": known, "lead": lead, "scores": scores, "families": families, "drawn": drawn}


def write_drawn(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write the drawn rollouts with room for a label; labels that a user has filled in stay.

    Raises:
        InputError: a line that cannot be read: its label would be lost.
    """
    labels: dict[Any, Any] = {}
    for row in read_rows(path) if path.is_file() else ():
        if row.error is not None:
            raise row.error
        labels[row.fields.get("id")] = row.fields.get("label")
    rows = []
    for one in rollouts:
        row = {"id": place_of(one), "label": labels.get(place_of(one))}
        rows.append(row | {"prompt": one.messages[-1]["content"], "completion": one.written})
    write_atomic(path, encode_jsonl(rows))


def read_labels(source: str | Path | Mapping[str, bool], rollouts: Sequence[Rollout]) -> dict[str, bool]:
    """Read {id: True = a hack} from a CSV, JSON lines or another table with columns `id` and `label`.

    Args:
        source: the file, or the labels.
        rollouts: all rollouts that an id may name.

    Raises:
        InputError: every fault of the file.
    """
    faults, labels, known = Faults(), dict[str, bool](), {place_of(one) for one in rollouts}
    is_mapping = isinstance(source, Mapping)
    rows = [*read_rows([{"id": place, "label": label} for place, label in source.items()] if is_mapping else source)]
    for row in rows:
        if isinstance(row.error, InputError):
            faults.note(row.error, "row")
            continue
        place, text = (str(row.fields.get(name, "")).strip() for name in ("id", "label"))
        label = HACKS.get(text.lower())
        for is_wrong, name, expected, found in (
            (place not in known, "id", f"STEP/SAMPLE of a rollout, such as {min(known)}", repr(place)),
            (label is None, "label", "1 (a hack) or 0", "nothing" if text in ("", "None") else repr(text)),
            (labels.get(place, label) != label, "label", f"one label of {place}", "two that differ"),
        ):
            if is_wrong:
                faults.add(f"{row.where} {name}", name, expected=expected, found=found)
        if label is not None:
            labels.setdefault(place, label)
    where = "labels" if is_mapping else str(source)
    if not rows:
        faults.add(where, "rows", expected="columns id (STEP/SAMPLE) and label (1 = hack, 0 = none)", found="no rows")
    faults.check(where)
    return labels
