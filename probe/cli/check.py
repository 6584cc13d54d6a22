"""probe check: from a log and a file of pairs to a verdict and a page, in one command.

The parts are verbs of their own, and this one calls what they call: `probe pool import`, `extract` (a replay extracts
what its cache lacks), `replay`, `analyze` and `report`.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli._frame import echo, echo_json, json_option, log_options, name_option, out_option
from probe.cli._running import say
from probe.cli._settings import SettingsCommand, configured, given_keys, settings_options
from probe.cli.report import ARMS, COLOURED, report_command, report_of_runs
from probe.records.run import default_name, elsewhere
from probe.settings.run import ReplayConfig
from probe.settings.training import ModelConfig
from replay_pools.base.errors import InputError, refuse
from replay_pools.pool import Pool

if TYPE_CHECKING:
    from replay_pools.logs.importing import CheckedLog

SCALE = "objective.scale_rewards"
# Settings that follow from what the command is given: a value of one's own would be ignored.
DECIDED = ("source.replay_dirs", "intervention.arms", "intervention.v_hack")
NULLS = {"num_draws": 999, "seed": 0}  # the defaults of `probe analyze`


@click.command(cls=SettingsCommand)
@click.argument("rollouts", type=click.Path(path_type=Path))
@name_option("pool, run and page", "that of the file, with a hash of what shapes the result", default=None)
@settings_options(
    "replay",
    "intervention.extraction.pairs",
    "intervention.extraction.pairs_map",
    "model.name: --model",
    "model.template",
    "steps",
    "source.only_step",
    "intervention.extraction.k",
    "seed",
    "model.device",
)
@log_options
@out_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    rollouts: Path,
    name: str | None,
    mapping: dict[str, str],
    format_name: str | None,
    limit: int | None,
    skip_bad: int,
    out: Path,
    as_json: bool,
) -> None:
    """Say whether the updates that ROLLOUTS make point hack-ward, whether that is about hacks, and what a gate does.

    ROLLOUTS is a log of any tool, a file or a folder. It is imported, replayed along the direction of --pairs, and
    judged; a page is written. What is wrong with both files is said at once, before a model is loaded. The same command
    goes on where it stopped, and uses again what is there. Example:

      probe check rollouts.jsonl --pairs pairs.jsonl --model Qwen/Qwen3-4B --map reward=score
    """
    config = configured(ctx, "replay")
    config = replace(config, intervention=replace(config.intervention, arms=ARMS))
    if "token_attribution" not in given_keys(ctx):
        config = replace(config, token_attribution=COLOURED)
    log, pair_notes = _checked(rollouts, format_name, mapping, skip_bad, config, given_keys(ctx))
    if log.scale_rewards is not None and SCALE not in given_keys(ctx):
        config = replace(config, objective=replace(config.objective, scale_rewards=log.scale_rewards))
        log.notes.append(f"the loss divides so, too (--set {SCALE})")
    name = name or _default_name(rollouts, log, config, limit)
    from probe.runs.preview import adapted_weights
    from probe.runs.replay import run_replay
    from probe.runs.session import running
    from replay_pools.logs.importing import import_log

    pool = import_log(
        log, name=name, out=out, model=str(config.model.name), template=config.model.template, limit=limit
    )
    if not as_json:
        first, *others = pair_notes
        lines = _log_lines(rollouts, log, pool, config.model, out)
        lines += [first, *(f"  {note}" for note in others)]
        adapted = adapted_weights(config.model, str(config.model.name))
        lines += [f"model {config.model.name}: {adapted.caution or adapted}"]
        echo("\n".join(lines) + "\n")
    per_pool = config.source.per_pool if "source.per_pool" in given_keys(ctx) else _group_size(log)
    config = replace(config, source=replace(config.source, replay_dirs=(name,), per_pool=per_pool))
    directory = out / "runs" / name
    with running(config.model, directory, out, say) as world:
        run_replay(config, directory, out_dir=out, world=world)
    _judge(directory, name, out, as_json)


def _checked(
    rollouts: Path,
    format_name: str | None,
    mapping: dict[str, str],
    skip_bad: int,
    config: ReplayConfig,
    given: set[str],
) -> "tuple[CheckedLog, list[str]]":
    """The log without faults, and what was decided of the pairs.

    Raises:
        InputError: everything that is wrong with the log, the pairs and the model's name.
    """
    from replay_pools.logs.importing import check_log

    errors = []
    for key in DECIDED:
        if key in given:
            expected = "none: it follows from ROLLOUTS and --pairs"
            errors.append(InputError(f"--set {key}", expected=expected, found="one", fix="use probe replay"))
    log = _gathered(errors, lambda: check_log(rollouts, format_name=format_name, mapping=mapping, skip_bad=skip_bad))
    if log is not None and (fault := _no_update(log)):
        errors.append(fault)
    if config.model.name is None:
        fix = "pass --model, the model that sampled the rollouts: organism, a directory or a hub id"
        errors.append(InputError("--model", expected="a model", found="none", fix=fix))
    notes: list[str] | None = None
    if "intervention.extraction.pairs" in given:
        notes = _gathered(errors, lambda: _checked_pairs(config))
    else:
        fix = (
            'write two dozen rows {"prompt", "hack", "clean"} that show your hack, and pass the file; --pairs builtin '
        )
        fix += "has those of the package, whose hack is a test that checks nothing, in small Python problems; "
        fix += "of a log with labels, probe pool draft proposes pairs"
        expected = "pairs of a hacking and a clean answer to one prompt: without them there is no direction"
        errors.append(InputError("--pairs", expected=expected, found="none", fix=fix))
        if log is not None:
            echo("\n".join(_without_pairs(rollouts, log)))
    refuse(errors)
    assert log is not None
    assert notes is not None
    return log, notes


def _no_update(log: "CheckedLog") -> InputError | None:
    """Why no group of a log has an update, whatever the settings are; None where one has."""
    groups = log.groups
    if max(map(len, groups)) < 2:
        expected = "several rollouts with a reward to one prompt, whose rewards are compared"
        fix = "log all of a group, or name what its rollouts have in common: --map group=COLUMN"
        return InputError(log.rows.source, expected=expected, found=f"one to each of {len(groups)}", fix=fix)
    if all(len({row.reward for row in group}) < 2 for group in groups):
        expected = "a group whose rewards differ: no other has an update"
        fix = "is the reward another column (--map reward=COLUMN)?"
        found = f"equal rewards within each of {len(groups)} groups"
        return InputError(f"{log.rows.source} reward", expected=expected, found=found, fix=fix)
    return None


def _group_size(log: "CheckedLog") -> int:
    """Rollouts in a group that every problem with rewards fills; two at least, since one alone has no update."""
    sizes = [sum(row.reward is not None for row in group) for group in log.groups]
    return max(2, min(filter(None, sizes), default=2))


def _gathered(errors: list[InputError], make: Callable[[], Any]) -> Any:
    """What `make` returns; None where it raises, and then all its errors are among `errors`."""
    try:
        return make()
    except InputError as error:
        errors += error.errors
    return None


def _checked_pairs(config: ReplayConfig) -> list[str]:
    """What was decided of the pairs, once they are sound for the tokenizer of the model; no weights are loaded."""
    from extraction.library import check_pairs
    from extraction.selection import pair_notes, selected_pairs
    from replay_pools.vocabulary import load_vocabulary

    extraction = config.intervention.extraction
    pairs = selected_pairs(extraction)
    cautions: list[str] = []
    if config.model.name is not None:
        cautions = check_pairs(load_vocabulary(config.model.name, config.model.template), pairs, extraction.k)
    return [*(pair_notes(extraction) or [f"pairs {extraction.pairs}: {len(pairs)}"]), *cautions]


def _without_pairs(rollouts: Path, log: "CheckedLog") -> list[str]:
    """What a log says by itself."""
    rows = [row for group in log.groups for row in group]
    spread = sum(len({row.reward for row in group}) > 1 for group in log.groups)
    labelled = [row for row in rows if row.hacked is not None]
    hacks = f"{sum(bool(row.hacked) for row in labelled)} of {len(labelled)} hack" if labelled else "hacks not logged"
    return [_mapped(rollouts, log), f"  {hacks}; rewards differ in {spread} groups, and only those have an update"]


def _default_name(rollouts: Path, log: "CheckedLog", config: ReplayConfig, limit: int | None) -> str:
    """The name of the file, with a hash of all that shapes the result: no two results share a name."""
    from extraction.pairs import pairs_sha
    from extraction.selection import selected_pairs

    pairs = pairs_sha(selected_pairs(config.intervention.extraction))
    shape = [
        log.sha256,
        [len(group) for group in log.groups],
        log.mapping,
        log.format.name,
        asdict(config),
        pairs,
        limit,
    ]
    return default_name(rollouts.name.partition(".")[0] or "log", shape)


def _mapped(rollouts: Path, log: "CheckedLog") -> str:
    """What was recognised of a log, and how to correct it."""
    from replay_pools.logs.columns import as_option

    num_rollouts = sum(map(len, log.groups))
    return (
        f"log {rollouts}: {num_rollouts} rollouts in {len(log.groups)} groups, read as --format {log.format.name} "
        f"{as_option(log.mapping)}: give these with other columns to correct them"
    )


def _log_lines(rollouts: Path, log: "CheckedLog", pool: Pool, model: ModelConfig, out: Path) -> list[str]:
    """What was recognised and chosen, and what limits the answer: cautions, and what no log can say."""
    from replay_pools.vocabulary import load_vocabulary

    cautions = pool.cautions
    doubts = load_vocabulary(str(model.name), model.template).cautions(pool)
    chosen = [note for note in log.notes if note not in cautions]
    num_others = len(pool.normalised) - len(cautions) - len(chosen)
    lines = [_mapped(rollouts, log)]
    if chosen:
        lines.append(f"  {'; '.join(chosen)}")
    lines += [f"  {note}" for note in [*cautions, *doubts]]
    largest, size = max(map(len, log.groups)), _group_size(log)
    if largest > size:
        sizes = f"groups of {size} to {largest} rollouts with a reward"
        lines.append(f"  {sizes}: {size} are compared at a time (--set source.per_pool=N)")
    details = f"probe pool show {pool.name}{elsewhere(out)}"
    others = f"; {num_others} details: {details}" if num_others else ""
    return [*lines, f"  cannot know: {log.format.cannot_know.rstrip('.')}{others}"]


def _judge(directory: Path, name: str, out: Path, as_json: bool) -> None:
    """Print the verdict, write the page, and name what goes on from there."""
    from probe.analysis.text_report import format_verdict
    from probe.analysis.verdict.next_step import direction
    from probe.report.build import write_report

    contents = report_of_runs([directory], name, NULLS, report_command((directory,), name, out, NULLS))
    written = write_report(contents, out)
    (analysis,) = contents.analyses
    if as_json:
        echo_json({"run": str(directory), "html": str(written.html), **analysis.to_json()})
        return
    echo(format_verdict(analysis).rstrip())
    echo(f"page {written.html}; more: probe analyze {name} --full{elsewhere(out)}")
    extract = direction(analysis.given, "svd")  # the basis of ARMS
    echo(f"the direction for your trainer (probe.attach): {extract}{elsewhere(out)}")
