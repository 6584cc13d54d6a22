"""probe check: from a log and a file of pairs to a verdict and a page, in one command.

It calls the functions behind `probe pool import`, `extract` (a replay extracts whatever its cache lacks), `replay`,
`analyze` and `report`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli._frame import echo, echo_json, log_options, name_option, say
from probe.cli._settings import configured, given_keys, settings_options, verb
from probe.cli.report import report_command, report_of_runs
from probe.records.run import elsewhere
from probe.settings.training import ModelConfig
from replay_pools.pool import Pool

if TYPE_CHECKING:
    from replay_pools.logs.importing import CheckedLog

ANALYSIS = {"seed": 0}  # the default of `probe analyze`


@verb()
@click.argument("rollouts", type=click.Path(path_type=Path))
@name_option("pool, run and page", "the name of the file, with a hash of all that shapes the result", default=None)
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
    unset=("intervention.extraction.pairs",),
)
@log_options
def check(rollouts: Path, name: str | None, limit: int | None, out: Path, as_json: bool, **given: Any) -> None:
    """Say whether the updates of ROLLOUTS point toward the hack, whether that is about hacks, what projection removes.

    ROLLOUTS is a log of any tool, a file or a folder. It is imported, replayed along the direction of --pairs, and
    judged; a page is written. What is wrong with both files is said at once, before a model is loaded. The same command
    continues where it stopped. Example:

      probe check rollouts.jsonl --pairs pairs.jsonl --model Qwen/Qwen3-4B --map reward=score
    """
    from probe.runs.check import checked, imported, replayed, settled  # brings numpy, which the help does not wait for

    config, keys = configured("replay", given), given_keys(given)
    log, pair_notes = checked(
        rollouts,
        config,
        keys,
        **{name: given[name] for name in ("mapping", "format_name", "skip_bad")},
        without_pairs=lambda log: echo("\n".join(_without_pairs(log))),
    )
    config, name = settled(log, config, keys, name, limit)
    pool = imported(log, config, name, out, limit)
    if not as_json:
        from probe.runs.preview import adapted_weights

        first, *others = pair_notes
        lines = _log_lines(rollouts, log, pool, config.model, out)
        lines += [first, *(f"  {note}" for note in others)]
        adapted = adapted_weights(config.model)
        lines += [f"model {config.model.name}: {adapted.caution or adapted}"]
        echo("\n".join(lines) + "\n")
    _judge(replayed(config, name, out, say), name, out, as_json)


def _without_pairs(log: "CheckedLog") -> list[str]:
    """Return lines on the log alone, if no pairs were given."""
    from probe.runs.check import recognised

    rows = [row for group in log.groups for row in group]
    spread = sum(len({row.reward for row in group}) > 1 for group in log.groups)
    labelled = [row for row in rows if row.hacked is not None]
    hacks = f"{sum(bool(row.hacked) for row in labelled)} of {len(labelled)} hack" if labelled else "hacks not logged"
    return [recognised(log), f"  {hacks}; rewards differ in {spread} groups, and only those have an update"]


def _log_lines(rollouts: Path, log: "CheckedLog", pool: Pool, model: ModelConfig, out: Path) -> list[str]:
    """Return lines on recognised columns, chosen settings, cautions and facts that no log records."""
    from probe.runs.check import group_size, recognised
    from replay_pools.vocabulary import load_vocabulary

    cautions = pool.cautions
    doubts = load_vocabulary(str(model.name), model.template).cautions(pool)
    chosen = [note for note in log.notes if note not in cautions]
    num_others = len(pool.normalised) - len(cautions) - len(chosen)
    lines = [recognised(log)]
    if chosen:
        lines.append(f"  {'; '.join(chosen)}")
    lines += [f"  {note}" for note in [*cautions, *doubts]]
    largest, size = max(map(len, log.groups)), group_size(log)
    if largest > size:
        sizes = f"groups of {size} to {largest} rollouts with a reward"
        lines.append(f"  {sizes}: {size} are compared at a time (--set source.per_pool=N)")
    details = f"probe pool show {pool.name}{elsewhere(out)}"
    others = f"; {num_others} details: {details}" if num_others else ""
    return [*lines, f"  cannot know: {log.format.cannot_know.rstrip('.')}{others}"]


def _judge(directory: Path, name: str, out: Path, as_json: bool) -> None:
    """Print the verdict, write the page, and name the files for the next steps."""
    from probe.analysis.text_report import format_verdict
    from probe.analysis.verdict.next_step import direction
    from probe.report.build import write_report

    contents = report_of_runs([directory], name, ANALYSIS, report_command((directory,), name, out, ANALYSIS))
    page, *_ = write_report(contents, out)
    (analysis,) = contents.analyses
    if as_json:
        echo_json({"run": str(directory), "html": str(page), **analysis.to_json()})
        return
    echo(format_verdict(analysis).rstrip())
    echo(f"page {page}; more: probe analyze {name} --full{elsewhere(out)}")
    extract = direction(analysis.given, "svd")  # the basis of USUAL_ARMS
    echo(f"the direction for your trainer (probe.attach): {extract}{elsewhere(out)}")
