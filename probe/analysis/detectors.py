"""DETECTORS: functions from stored rollouts to one number each, higher = more like a hack.

    material = Material(rollouts=..., labels=..., similarities=..., ...)        measured once, by `probe.runs.meter`
    found = score_all(material, ["similarity", "logratio", "text:sys\\.exit"])  {name: Scores}

A detector is one row: its name, and a function whose parameters are the fields of `Material` that it needs (`material`:
all of it; `argument`: what follows the name and a colon). It returns (n,), or raises `NotMeasured`. A field that was
not measured is None, and `Material.missing` says why; so does the score then. To add a detector, add a row.

    similarity   mean cosine of g with the pairs' hack gradients minus that with their clean gradients (as LESS)
    influence    minus the mean cosine of g with the pairs' clean gradients (as I-PPO, arXiv 2604.01597)
    cosine       cosine of g with v_hack; cosine-unit: v_hack of pair gradients at norm 1
    fingerprint  GRIFT (arXiv 2604.16242): k-means of 2 on unit(M g), M one seeded random projection for all rollouts
    logratio     mean log-probability under the weights that sampled minus that under the reference weights
    activation   projection of the mean hidden state on the pairs' mean difference, minus its mean over the prompt
    probe, words a logistic probe on hidden states, naive Bayes on the set of token ids; never fitted on the own prompt

g is the gradient of a rollout's summed NLL. Shapes: n rollouts, m pairs (sides: hack, clean), L layers of size d,
s dimensions of a fingerprint.
"""

import contextlib
import inspect
import random
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.classifiers import bayes_scores, logistic_scores, two_means
from probe.analysis.statistics.intervals import Array, auroc, auroc_interval, centred, cluster_numbers
from replay_pools.base.errors import InputError, refuse, unknown_name
from replay_pools.base.tables import HACKS
from replay_pools.rollout import Rollout

FOLDS = 10  # of prompts, in which the probe is cross-fitted
SAME_SCORES = 1e-4  # nats per token between two scores of the same weights, which differ by float32's rounding alone
GRADIENT_FIELDS = ("cosines", "similarities", "fingerprints")  # fields of Material that need a backward
# All fields of Material that are measured, (n, ...) each; `cosines` is a mapping to such arrays.
ARRAYS = ("logprobs", "sampled", "reference", "states", "similarities", "fingerprints")
TOO_FEW = "too few prompts with a label of each kind to learn from"
LABELLED = "needs labels (--map hacked=COLUMN, or --labels without --label)"


class NotMeasured(Exception):  # noqa: N818 (no error: the detector says why it has no scores)
    """The reason why a detector has no number for any rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMaterial:
    """The material of the pairs; axis 0 is (hack, clean)."""

    kinds: Sequence[str]  # (m,) kind of hack
    held_out: NDArray[np.bool_]  # (m,) not used by any score
    states: Array | None = None  # (2, m, L, d)
    fingerprints: Array | None = None  # (2, m, s)
    similarities: Array | None = None  # (2, m, 2, m) cosines between the pairs' gradients

    @property
    def used(self) -> NDArray[np.intp]:
        """Positions of the pairs that are not held out."""
        return np.flatnonzero(~self.held_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """All that detectors may read of n rollouts; None: not measured, and `missing` says why."""

    rollouts: Sequence[Rollout]
    pools: Sequence[str] = ()  # (n,) name of each rollout's pool; empty: ""
    labels: Array | None = None  # (n,) 1 = hack, 0 = none, NaN = unknown
    learned: int | None = None  # most labels to learn from, half of them of each kind; None: all that are known
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # further columns of the log, (n,) each
    seed: int = 0
    logprobs: Array | None = None  # (n,) nats per token under the weights where the gradient is taken
    sampled: Array | None = None  # (n,) nats per token under the weights that sampled
    reference: Array | None = None  # (n,) nats per token under the reference weights
    states: Array | None = None  # (n, L, d) mean hidden state over the scored tokens
    cosines: Mapping[str, Array] | None = None  # {kind of direction: (n,)}
    similarities: Array | None = None  # (n, 2, m) cosines with the pairs' gradients
    fingerprints: Array | None = None  # (n, s) norm 1
    pairs: PairMaterial | None = None
    missing: Mapping[str, str] = field(default_factory=dict)  # {field: why it is None}

    @property
    def prompts(self) -> list[str]:
        """(n,) the prompt of each rollout, the unit of all intervals."""
        return [rollout.problem_id for rollout in self.rollouts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One detector's numbers: (n,) with NaN where one is missing; None if all are. `why` says why."""

    values: Array | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Detector:
    """One row of the table."""

    name: str
    score: Callable[..., Array]
    argument: str = ""  # what follows the name and a colon, a key of ARGUMENTS
    gaps: str = "a gradient of 0"  # why single rollouts have no number
    is_verdict: bool = False  # 1 = flagged, 0 = not: needs no threshold

    @property
    def needs(self) -> list[str]:
        """Fields of Material, and `material` and `argument`."""
        return list(inspect.signature(self.score).parameters)


def _along(kind: str) -> Callable[..., Array]:
    return lambda pairs, cosines: cosines[kind]


def _similarity(pairs: PairMaterial, similarities: Array) -> Array:
    hack, clean = similarities[:, :, pairs.used].mean(-1).T
    return hack - clean


def _influence(pairs: PairMaterial, similarities: Array) -> Array:
    return -similarities[:, 1][:, pairs.used].mean(-1)


def _logratio(reference: Array, sampled: Array) -> Array:
    ratio = sampled - reference
    if np.abs(ratio).mean() < SAME_SCORES:
        raise NotMeasured("the weights that sampled are the reference weights")
    return ratio


def _activation(pairs: PairMaterial, states: Array, rollouts: Sequence[Rollout]) -> Array:
    """Subtract the prompt's mean, since hidden states also tell prompts apart."""
    projected = project_states(states, pairs, pairs.used)
    member = cluster_numbers([rollout.prompt_sha for rollout in rollouts])
    alone = np.bincount(member)[member] < 2
    return np.where(alone, np.nan, centred(projected, member))


def project_states(states: Array, pairs: PairMaterial, used: NDArray[np.intp]) -> Array:
    """Project states (..., L, d) on the unit mean difference of pairs, averaged over layers: (...,)."""
    assert pairs.states is not None
    difference = (pairs.states[0, used] - pairs.states[1, used]).mean(0)  # (L, d)
    norms = np.linalg.norm(difference, axis=-1, keepdims=True)
    return (states * (difference / np.where(norms > 0, norms, 1.0))).sum(-1).mean(-1)


def _fingerprint(fingerprints: Array, material: Material) -> Array:
    """Score by squared distances to two centroids, which orders rollouts as GRIFT's softmax does."""
    clusters = two_means(fingerprints[~np.isnan(fingerprints).any(1)], material.seed)
    if clusters is None:
        raise NotMeasured("all fingerprints are equal")
    first, second = clusters
    # Higher: nearer to the first.
    score = np.square(fingerprints - second).sum(1) - np.square(fingerprints - first).sum(1)
    return _side_of_hacks(material, score, second - first) * score


def _side_of_hacks(material: Material, score: Array, apart: Array) -> Array | float:
    """Return 1 if the first cluster is the hacks', else -1.

    By pairs, else by labels of other prompts (n,), else the smaller cluster is the hacks'.
    """
    pairs, known = material.pairs, ~np.isnan(score)
    if pairs is not None and pairs.fingerprints is not None:
        difference = np.nanmean((pairs.fingerprints[0] - pairs.fingerprints[1])[pairs.used], axis=0)
        return float(-np.sign(difference @ apart))
    if material.labels is not None:
        with contextlib.suppress(NotMeasured):
            return _cross_fitted(
                material,
                known,
                lambda rows, hacked, scored: np.sign(score[rows[hacked]].mean() - score[rows[~hacked]].mean()),
            )
    return 1.0 if (score[known] > 0).mean() <= 0.5 else -1.0


def _probe(features: Array, material: Material) -> Array:
    x = features.reshape(len(features), -1)
    usable = np.asarray(~np.isnan(x).any(1))
    x = x - np.nanmean(x, axis=0)
    spread = np.nanstd(x, axis=0)
    x = x / np.where(spread > 0, spread, 1.0)
    return _cross_fitted(material, usable, lambda rows, hacked, scored: logistic_scores(x[rows], hacked, x[scored]))


def _cross_fitted(material: Material, usable: NDArray[np.bool_], fit: Callable[[Any, Any, Any], ArrayLike]) -> Array:
    """Return (n,) scores, fitted for every fold of prompts on the training rows of the other prompts.

    Args:
        material: with labels.
        usable: (n,) rows that may be learned from.
        fit: maps rows to learn from, their labels (True: a hack) and (n,) the rows to score to the scores of these.
    """
    assert material.labels is not None
    rows, fold = training_rows(material, usable), cluster_numbers(material.prompts) % FOLDS
    scores = np.zeros(len(fold))
    for number in np.unique(fold):
        others = rows[fold[rows] != number]
        hacked, scored = material.labels[others] == 1, fold == number
        if hacked.all() or not hacked.any():
            raise NotMeasured(TOO_FEW)
        scores[scored] = fit(others, hacked, scored)
    return scores


def _words(labels: Array, material: Material) -> Array:
    rows = training_rows(material)
    ids = [rollout.completion_ids for rollout in material.rollouts]
    return bayes_scores(ids, (labels == 1).tolist(), material.prompts, rows.tolist())


def training_rows(material: Material, usable: NDArray[np.bool_] | None = None) -> NDArray[np.intp]:
    """Return the rows to learn from, taking prompts in turn: of each label at most half of `learned`.

    Args:
        material: with labels.
        usable: (n,) rows that may be chosen; None: all.

    Raises:
        NotMeasured: a label is in fewer than two prompts.
    """
    assert material.labels is not None
    labels, prompts = material.labels, material.prompts
    known = np.flatnonzero(~np.isnan(labels) & (True if usable is None else usable))
    most = len(known) if material.learned is None else material.learned
    chosen: list[int] = []
    for side, size in ((1, most // 2), (0, most - most // 2)):
        met = Counter[str]()  # rows of each prompt so far
        turns = []
        for row in known[labels[known] == side].tolist():
            turns.append((met[prompts[row]], row))
            met[prompts[row]] += 1
        of_side = [row for _, row in sorted(turns)[:size]]
        if len({prompts[row] for row in of_side}) < 2:
            raise NotMeasured(TOO_FEW)
        chosen += of_side
    return np.array(chosen, dtype=np.intp)


def _column(rollouts: Sequence[Rollout], columns: Mapping[str, Sequence[Any]], argument: str) -> Array:
    """Read a column of the log, or a verdict that the pool stores with the grade."""
    names = {name for rollout in rollouts for name in rollout.grade.detectors}
    known = {name: [rollout.grade.detectors.get(name) for rollout in rollouts] for name in names} | {**columns}
    numbers = np.array([*map(_verdict, known.get(argument, ()))])
    if np.isnan(numbers).all():
        raise NotMeasured(f"no column of numbers; columns: {', '.join(sorted(known)) or 'none'}")
    return numbers


def _verdict(value: Any) -> float:
    """Return a judge's verdict as a number, which may stand in a text; NaN for what is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float(HACKS.get(str(value).strip().lower(), np.nan))
    return number if np.isfinite(number) else np.nan


def _text(rollouts: Sequence[Rollout], argument: str) -> Array:
    return np.array([float(re.search(argument, rollout.written) is not None) for rollout in rollouts])


def _label(labels: Array, rollouts: Sequence[Rollout], pools: Sequence[str], seed: int, argument: str) -> Array:
    """Read each label as a monitor of this accuracy does; a lower accuracy misreads the same rollouts and more."""
    places = [f"{pool}/{place_of(one)}" for pool, one in zip(pools or [""] * len(rollouts), rollouts, strict=True)]
    draws = np.array([random.Random(f"monitor/{seed}/{place}").random() for place in places])
    return np.where(draws >= float(argument or 1), 1 - labels, labels)


def _is_accuracy(argument: str) -> None:
    if not 0 <= float(argument or 1) <= 1:
        raise ValueError(f"{argument}, not an accuracy from 0 to 1")


# {kind of argument: a check that raises a ValueError}; one in brackets may be missing
ARGUMENTS: Mapping[str, Callable[[str], Any]] = {"": str, "REGEX": re.compile, "NAME": str, "[ACCURACY]": _is_accuracy}
# In the order in which one leads: the first that is measured and needs no label draws the list to read.
DETECTORS: Mapping[str, Detector] = {
    row.name: row
    for row in (
        Detector("similarity", _similarity),
        Detector("influence", _influence),
        Detector("cosine", _along("mean")),
        Detector("cosine-unit", _along("unit")),
        Detector("logratio", _logratio),
        Detector("activation", _activation, gaps="the only rewarded rollout of its prompt"),
        Detector("fingerprint", _fingerprint),
        Detector("probe", lambda labels, states, material: _probe(states, material)),
        Detector("probe:fingerprint", lambda labels, fingerprints, material: _probe(fingerprints, material)),
        Detector("words", _words),
        Detector("nll", lambda logprobs: -logprobs),
        Detector("length", lambda rollouts: np.array([float(rollout.num_sampled) for rollout in rollouts])),
        Detector("text", _text, "REGEX", is_verdict=True),
        Detector("column", _column, "NAME", gaps="no number in that column"),
        Detector("label", _label, "[ACCURACY]", gaps="no label", is_verdict=True),
        Detector("haar", _along("haar")),
        Detector("shuffled", _along("shuffled")),
    )
}
PANEL = tuple(name for name, row in DETECTORS.items() if not row.argument and ":" not in name)
# The first of OF_GRADIENTS that is measured has to win against TRIVIAL.
OF_GRADIENTS = ("similarity", "influence", "cosine", "cosine-unit", "fingerprint")
TRIVIAL = ("logratio", "words", "nll", "length", "text")
NULLS = ("haar", "shuffled")  # cosines with directions without meaning


def row_of(name: str, where: str = "--detectors") -> tuple[Detector, str]:
    """Return the row and the argument of `NAME` or `NAME:ARGUMENT`.

    Raises:
        InputError: no such detector, or an argument that is missing, superfluous or wrong; at `where`.
    """
    base, argument = (name, "") if name in DETECTORS else name.partition(":")[::2]
    if base not in DETECTORS:
        fix = "probe docs detect lists them"
        raise unknown_name(f"{where} {base}", base, DETECTORS, expected="a detector", fix=fix)
    row = DETECTORS[base]
    try:
        if bool(argument) != bool(row.argument) and row.argument != "[ACCURACY]":
            raise ValueError("no argument" if row.argument else f"the argument {argument}")
        ARGUMENTS[row.argument](argument)
    except (ValueError, re.error) as error:
        expected = f"{base}:{row.argument}" if row.argument else base
        raise InputError(f"{where} {name}", expected=expected, found=str(error)) from error
    return row, argument


def checked_names(names: Sequence[str]) -> list[str]:
    """Return the names without repetition; InputError with all faults."""
    errors: list[InputError] = []
    for name in names:
        try:
            row_of(name)
        except InputError as error:
            errors.append(error)
    refuse(errors)
    return list(dict.fromkeys(names))


def fields_of(name: str) -> set[str]:
    """Return the fields of `Material` that a detector reads, of those that need a measurement, pairs or labels."""
    return {*row_of(name)[0].needs} & {*ARRAYS, "cosines", "pairs", "labels"}


def joined(first: Material, second: Material) -> Material:
    """Put the rollouts of two materials, measured by the same `Meter`, one after the other."""
    both: dict[str, Any] = {}
    for name in ("labels", *ARRAYS):
        a, b = getattr(first, name), getattr(second, name)
        both[name] = None if a is None or b is None else np.concatenate([a, b])
    if first.cosines is not None and second.cosines is not None:
        both["cosines"] = {kind: np.concatenate([a, second.cosines[kind]]) for kind, a in first.cosines.items()}
    rollouts, pools = [*first.rollouts, *second.rollouts], [*first.pools, *second.pools]
    return replace(first, rollouts=rollouts, pools=pools, missing={**first.missing, **second.missing}, **both)


def score_all(material: Material, names: Sequence[str]) -> dict[str, Scores]:
    """Return {name: its scores}; a detector without its needs has none, and says why."""
    scores = {}
    for name in names:
        row, argument = row_of(name)
        fields = {"material": material, "argument": argument}
        fields = {need: fields[need] if need in fields else getattr(material, need) for need in row.needs}
        if lacking := [need for need, value in fields.items() if value is None]:
            why = LABELLED if lacking[0] == "labels" else "not measured"
            scores[name] = Scores(values=None, why=material.missing.get(lacking[0], why))
            continue
        try:
            values = row.score(**fields)
        except NotMeasured as reason:
            scores[name] = Scores(values=None, why=str(reason))
            continue
        gaps = int(np.isnan(values).sum())
        scores[name] = Scores(values=values, why=f"{gaps} without: {row.gaps}" if gaps else "")
    return scores


def place_of(rollout: Rollout) -> str:
    """Return the rollout's id in files and on the screen, STEP/SAMPLE."""
    return f"{rollout.step}/{rollout.sample_id}"


def labels_of(rollouts: Sequence[Rollout]) -> Array:
    """Return (n,) 1 = hack, 0 = none, NaN = unknown."""
    return np.array([np.nan if one.hacked is None else float(one.hacked) for one in rollouts])


def separation(
    name: str, scores: ArrayLike, labels: ArrayLike, prompts: Sequence[Hashable], *, arm: str | None = None
) -> Estimate:
    """Return the AUROC of a score for hacks, with its interval over prompts.

    parts: `n_hacked` and `n_clean` rollouts.

    Args:
        name: name of the estimate.
        scores: (n,); rows with NaN are left out.
        labels: (n,) 1 = hack, 0 = none; rows with NaN are left out.
        prompts: (n,).
        arm: arm of the estimate.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(x) & ~np.isnan(y))
    x, hacked, members = x[known], y[known] == 1, [prompts[row] for row in known.tolist()]
    parts = {"n_hacked": int(hacked.sum()), "n_clean": int((~hacked).sum())}
    row = Estimate(name=name, n=len({*members}), unit="prompt", arm=arm, null=0.5, parts=parts)
    if 0 in parts.values():
        return replace(row, why="a side is missing")
    return replace(row, value=auroc(x, hacked), interval=auroc_interval(x, hacked, members))


def mean_logprobs(rollouts: Sequence[Rollout]) -> Array | None:
    """Return (n,) recorded nats per sampled token; None if a rollout has no log-probabilities."""
    means = []
    for rollout in rollouts:
        if not rollout.sampling_logprobs:
            return None
        mask = np.array(rollout.completion_mask or [True] * rollout.comp_len)
        means.append(np.array(rollout.sampling_logprobs)[mask].mean())
    return np.array(means)
