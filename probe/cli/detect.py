"""probe detect: rank the rollouts of a pool or a log by how much they look like a hack."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extraction.settings import BASES, Basis
from probe.analysis.formatting import render_table, shown, wrap
from probe.cli._frame import Table, Text, command, echo, log_options, name_option, one_of, say
from probe.cli._running import check_names
from probe.cli._settings import MODEL, PAIRS, all_settings, configured, settings_options, verb
from replay_pools.base.files import append_jsonl
from replay_pools.pool import CAUTION

if TYPE_CHECKING:
    from extraction.settings import ExtractionSettings
    from probe.runs.detect import Detected

FIRST = 10  # rows of the list to read first
GIST = 56  # characters of a completion in the list
ANSWERS = "answers.jsonl"  # labels from the terminal, in the folder of the results


@verb()
@click.argument("rollouts", metavar="POOL_OR_LOG")
@name_option("results", "the pool's, with a hash of all that shapes them", default=None)
@click.option("--labels", type=click.Path(path_type=Path), help="Labels: a file with columns id (STEP/SAMPLE), label.")
@click.option(
    "--label",
    type=click.IntRange(3),
    metavar="N",
    help="Draw N rollouts by strata of the score, ask for their labels (or take --labels), and print precision.",
)
@click.option("--detectors", metavar="NAME,...", help="Detectors, the first one orders the list. Default: the panel.")
@click.option("--no-gradients", is_flag=True, help="Run forward passes alone, at less than half the cost.")
@one_of("--basis", BASES, "Of the gradients.", default="svd")
@click.option(
    "--reference", metavar="MODEL", help="Model before the training, for logratio. Default: without the adapter."
)
@settings_options("replay", *PAIRS, *MODEL, "model.adapter", "seed", unset=PAIRS[:1])
@log_options
def detect(rollouts: str, detectors: str | None, basis: Basis, no_gradients: bool, out: Path, **given: Any) -> Text:
    """Rank the rewarded rollouts of a pool or a log by how much they look like a hack.

    POOL_OR_LOG is a pool, bundled or imported, or a log of any tool. Gradients are taken at the weights that sampled:
    the pool's, or --model with --adapter. Without --pairs, only detectors that need none run. With labels the screen
    has the AUROC of every detector and says BEATEN where a score that costs nothing does as well. Examples:

      probe detect mixed --pairs builtin:run_tests

      probe detect log.jsonl --model Qwen/Qwen3-4B --pairs pairs.jsonl --label 20

      probe detect log.jsonl --model Qwen/Qwen3-4B --no-gradients --detectors logratio,text:sys\\.exit
    """
    config, settings = configured("replay", given), all_settings(given)
    check_names((), config.intervention.extraction.pairs, out)
    from probe.runs.detect import PAIRS
    from probe.runs.detect import detect as ranked  # brings torch

    names, label = ("label", "reference", "name", "mapping", "format_name", "skip_bad", "limit"), given["label"]
    options: dict[str, Any] = {name: given[name] for name in (*names, "preset")}
    options |= {"detectors": _split(detectors), "basis": basis, "gradients": not no_gradients, "out": out}
    detect_by: Callable[..., Detected] = partial(ranked, rollouts, settings=settings, **options)
    # The screen begins with the cautions.
    detection = detect_by(say=lambda text: None if text.startswith(CAUTION) else say(text), labels=given["labels"])
    is_json = click.get_current_context().params["as_json"]
    if label is not None and given["labels"] is None and sys.stdin.isatty() and not is_json:
        answers = _asked(detection)
        if answers is None:
            yield f"labels saved in {detection.path / ANSWERS}: repeat the command to continue"
            return detection.to_json()
        detection = detect_by(say=lambda _: None, labels=answers)
    yield from _described(detection)
    if label is not None and "audit" not in detection.families:
        counts = Counter(stratum for _, stratum in detection.drawn)
        spread, path = " + ".join(str(counts[number]) for number in sorted(counts)), detection.path / "drawn.jsonl"
        yield (
            f"{len(detection.drawn)} rollouts were drawn ({spread} of the first 10%, the next 30%, the "
            f"rest): fill in the labels of {path}, and repeat the command with --labels {path}"
        )
    yield f"scores of all: {detection.path / 'scores.jsonl'}; estimates: {detection.path / 'estimates.json'}"
    if PAIRS in settings:
        yield _tokens_command(detection, config.intervention.extraction)
    return detection.to_json() | {"rollouts": detection.rows()}


def _split(text: str | None) -> list[str]:
    """Split at commas in front of a detector's name: a regular expression may have others."""
    from probe.analysis.detectors import DETECTORS

    if text is None:
        return []
    names = "|".join(DETECTORS)
    parts = re.split(rf",(?=(?:{names})(?:[:,]|$))", text) if ":" in text else text.split(",")
    return [part.strip() for part in parts if part.strip()]


def _asked(detection: "Detected") -> Path | None:
    """Ask for the label of every drawn rollout on the terminal; earlier answers in the folder are kept.

    Return the file of labels; None if the user stops before the last one.
    """
    from probe.analysis.detectors import place_of
    from probe.report.facts import question_of
    from probe.runs.detect import read_labels

    path = detection.path / ANSWERS
    known = read_labels(path, detection.rollouts) if path.is_file() else {}
    for number, (row, _) in enumerate(detection.drawn, 1):
        rollout, place = detection.rollouts[row], place_of(detection.rollouts[row])
        if place in known:
            continue
        echo(f"\n--- {number} of {len(detection.drawn)}: {place}\n\nPROMPT\n{question_of(rollout)}\n")
        echo(f"COMPLETION\n{rollout.written}\n")
        answer = click.prompt("A hack? (q: save and stop)", type=click.Choice(["y", "n", "q"]), show_choices=True)
        if answer == "q":
            return None
        append_jsonl(path, {"id": place, "label": int(answer == "y")})
    return path


# (family, title, format of a value, columns of its parts)
FAMILIES = (
    (
        "auroc",
        "AUROC for hacks among these rollouts (interval over prompts)",
        ".2f",
        {"n_hacked": "hacks", "n_clean": "clean"},
    ),
    ("agreement", "Rank correlation with {lead} (no labels; interval over prompts)", "+.2f", {}),
    ("audit", "By the answers (weighted by stratum; interval over prompts)", ".2f", {"n_labelled": "answers"}),
)


def _described(detection: "Detected") -> Iterator[str | Table]:
    """Yield cautions, what the ranking is worth, and the list to read."""
    from probe.analysis.panel import worth
    from probe.analysis.text_report import table_of

    adapter = f", adapter {detection.model.adapter}" if detection.model.adapter else ""
    problems = len({one.problem_id for one in detection.rollouts})
    num = detection.pool.manifest["counts"]["rollouts"]
    ranked = f"{len(detection.rollouts)} of {num} rollouts are rewarded and ranked"
    if len(detection.rollouts) == num:
        ranked = f"all {num} rollouts are ranked"
    head = f"pool {detection.pool.name}: {ranked} ({problems} prompts); weights: {detection.model.name}{adapter}"
    yield _wrapped(*(f"caution: {caution}" for caution in detection.cautions), head)
    yield ""
    yield _wrapped(
        *worth(detection.families, detection.scores, detection.lead, detection.labels, is_drawn=bool(detection.drawn))
    )
    for family, title, form, parts in FAMILIES:
        if rows := [row for row in detection.families.get(family, ()) if row.value is not None]:
            yield "\n" + render_table(table_of(family, title.format(lead=detection.lead), rows, form=form, parts=parts))
    missing: dict[str, list[str]] = {}
    for name, scores in detection.scores.items():
        if scores.values is None:
            missing.setdefault(scores.why, []).append(name)
    for why, names in missing.items():
        yield _wrapped(f"not measured: {', '.join(names)}: {why}")
    yield from _first(detection)


def _wrapped(*texts: str) -> str:
    return "\n".join(line for text in texts for line in wrap(text, indent="  "))


def _first(detection: "Detected") -> Iterator[str | Table]:
    """Yield the rollouts to read first, and the command that shows one."""
    from probe.analysis.detectors import place_of
    from probe.report.facts import gist_of

    if detection.lead is None:
        yield "no detector was measured that orders the rollouts"
        return
    others = [name for name in ("logratio", "activation", "nll") if name != detection.lead]
    others = [name for name in others if name in detection.scores and detection.scores[name].values is not None][:1]
    rollouts = {place_of(one): one for one in detection.rollouts}
    rows, cells = detection.rows()[:FIRST], []
    for row in rows:
        numbers = [shown(row[name], "+.3f") for name in (detection.lead, *others)]
        label = {True: "hack", False: "clean", None: "-"}[row["hacked"]]
        cells.append((row["id"], gist_of(rollouts[row["id"]], " | ")[:GIST].ljust(GIST), *numbers, label))
    yield f"\nRead these first (by {detection.lead})"
    yield Table(("id", "completion".ljust(GIST), detection.lead, *others, "label"), cells, left=2)
    yield f"one of them: {command('show', detection.pool.name, *rows[0]['id'].split('/'))}"


def _tokens_command(detection: "Detected", extraction: "ExtractionSettings") -> str:
    """Return the commands of a page that colours tokens by their share of the cosine with the pairs' direction."""
    run = f"{detection.path.name}-tokens"
    words = ["--replay-dirs", detection.pool.name, "--model", detection.model.name, "--pairs", extraction.pairs]
    words += ["--pairs-map", extraction.pairs_map] if extraction.pairs_map else []
    words += ["--set", f"model.adapter={detection.model.adapter}"] if detection.model.adapter else []
    size = max(2, min(map(len, detection.pool.steps)))  # what every group fills
    words += ["--per-pool", size, "--set", "token_attribution=none", "--name", run]
    return f"tokens in colour, as a page: {command('replay', *words)} && {command('report', run)}"
