"""probe check: from a log and a file of pairs to a verdict and a page, in one command.

It calls the functions behind `probe pool import`, `extract` (a replay extracts whatever its cache lacks), `replay`,
`analyze` and `report`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli._frame import Text, command, log_options, name_option, say
from probe.cli._settings import MODEL, PAIRS, configured, given_keys, settings_options, verb
from probe.cli.report import report_of
from probe.records.run import elsewhere
from replay_pools.pool import Pool

if TYPE_CHECKING:
    from replay_pools.logs.importing import CheckedLog


@verb()
@click.argument("rollouts", type=click.Path(path_type=Path))
@name_option("pool, run and page", "the name of the file, with a hash of all that shapes the result", default=None)
@settings_options("replay", *PAIRS, *MODEL, "steps", "source.only_step", "seed", unset=PAIRS[:1])
@log_options
def check(rollouts: Path, name: str | None, limit: int | None, out: Path, **given: Any) -> Text:
    """Say whether the updates of ROLLOUTS point toward the hack, whether that is about hacks, what projection removes.

    ROLLOUTS is a log of any tool, a file or a folder. It is imported, replayed along the direction of --pairs, and
    judged; a page is written. What is wrong with both files is said at once, before a model is loaded. The same command
    continues where it stopped. Example:

      probe check rollouts.jsonl --pairs pairs.jsonl --model Qwen/Qwen3-4B --map reward=score
    """
    from probe.runs.check import checked, imported, replayed  # brings numpy, which the help does not wait for

    config, keys = configured("replay", given), given_keys(given)
    reading = {name: given[name] for name in ("mapping", "format_name", "skip_bad")}
    log, (first, *others) = checked(rollouts, config, keys, click.echo, **reading)
    config, pool = imported(log, config, keys, name, out, limit)
    name = pool.name
    yield from _of_log(log, pool, config.source.per_pool)
    yield from (first, *(f"  {note}" for note in others))
    from probe.runs.policies import adapted_weights  # brings torch, which a faulty log does not wait for

    adapted = adapted_weights(config.model)
    yield f"model {config.model.name}: {adapted.caution or adapted}\n"
    directory = replayed(config, name, out, say)

    from probe.analysis.text_report import format_verdict
    from probe.analysis.verdict.next_step import direction
    from probe.report.build import write_report

    contents = report_of([directory], name, out)
    (page, _), (analysis,) = write_report(contents, out), contents.analyses
    yield format_verdict(analysis).rstrip()
    yield f"page {page}; more: {command('analyze', name, '--full')}"
    extract = direction(analysis.given, "svd")  # the basis of USUAL_ARMS
    yield f"the direction for your trainer (probe.attach): {extract}{elsewhere(out)}"
    return {"run": str(directory), "html": str(page), **analysis.to_json()}


def _of_log(log: "CheckedLog", pool: Pool, size: int) -> Iterator[str]:
    """Yield lines on recognised columns, chosen settings, cautions and facts that no log records."""
    from probe.runs.check import recognised

    cautions = pool.cautions
    chosen = [note for note in log.notes if note not in cautions]
    yield recognised(log)
    yield from (f"  {text}" for text in ("; ".join(chosen), *cautions) if text)
    if (largest := max(map(len, log.groups))) > size:
        sizes = f"groups of {size} to {largest} rollouts with a reward"
        yield f"  {sizes}: {size} are compared at a time (--set source.per_pool=N)"
    num_others = len(pool.normalised) - len(cautions) - len(chosen)
    if num_others:
        yield f"  {num_others} details: {command('pool', 'show', pool.name)}"
