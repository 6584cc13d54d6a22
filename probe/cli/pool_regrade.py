"""probe pool regrade: grade the stored completions of a pool again, and compare the labels."""

from pathlib import Path
from typing import Any

import click

from probe.cli._frame import echo, echo_json, echo_table, json_option, name_option, out_option
from probe.cli._progress import say, shown_progress
from probe.cli.completion import one_pool
from probe.cli.pool import describe_tests, open_sound_pool
from replay_pools.agreement import Regrade, compare, graded_code_rule, write_regrade
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.pool import Pool, resolve_pool
from replay_pools.regrade import regrade_pool
from replay_pools.rollout import CODE_RULES, CodeRule


@click.command()
@click.argument("pool_name", metavar="POOL", shell_complete=one_pool)
@name_option("new pool", required=True)
@click.option("--problems", type=click.Path(path_type=Path), help="LeetCode jsonl with the problems of POOL, by id.")
@click.option("--mode", type=click.Choice([*LOOPHOLES]), help="Loophole mode, where POOL does not record one.")
@click.option("--code-rule", type=click.Choice(CODE_RULES), help="Which code blocks count. Default: the rule of POOL.")
@click.option("--twice", is_flag=True, help="Grade everything twice; labels that disagree make a rollout `flaky`.")
@click.option("--cpu-limit", type=click.IntRange(1), help="CPU seconds; as `pool generate`. Default: POOL's, or 4.")
@click.option("--workers", type=click.IntRange(1), help="Grading processes; default: the number of cores.")
@click.option("--unsafe-local", is_flag=True, help="Grade without isolation; recorded, and excluded from verdicts.")
@out_option
@json_option
def regrade(
    pool_name: str,
    name: str,
    problems: Path | None,
    mode: str | None,
    code_rule: CodeRule | None,
    twice: bool,
    cpu_limit: int | None,
    workers: int | None,
    unsafe_local: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Grade every completion of POOL again, write out/pools/NAME, and print how far the labels agree.

    POOL itself is left alone. The agreement also goes to out/regrades, where `probe analyze` reads it. A killed run
    continues where it stopped. Example:

      probe pool regrade teacher --name teacher-again
    """
    from replay_pools.grading.grade import Grader
    from replay_pools.grading.tiers import describe_tier
    from replay_pools.rollout import MIN_CPU_S

    source = open_sound_pool(resolve_pool(pool_name, out))
    rule = code_rule or graded_code_rule(source)
    # The old pool's own limit, so that its labels stay comparable; imported and older pools record none.
    cpu_s = cpu_limit or source.manifest["grader"].get("cpu_s", MIN_CPU_S)
    grader = Grader(workers=workers, unsafe_local=unsafe_local, twice=twice, code_rule=rule, cpu_s=cpu_s)
    with grader, shown_progress():
        say(f"pool {source.path}; code rule {rule}; grading under {describe_tier(grader.isolation)}")
        new = regrade_pool(
            out / "pools" / name,
            source,
            grader,
            env=f"leetcode:{problems}" if problems else None,
            mode=mode,
        )
    record = compare(source, new)
    write_regrade(out, record)
    if as_json:
        echo_json(_report(new, record))
    else:
        _print_agreement(new, record)


def _report(new: Pool, record: Regrade) -> dict[str, Any]:
    return {
        "path": str(new.path),
        "regraded_from": new.manifest["regraded_from"],
        "counts": new.manifest["counts"],
        "tests": new.manifest["tests"],
        "flaky": record.flaky,
        "without_label": record.without_label,
        "agreement": record.rows,
    }


def _print_agreement(new: Pool, record: Regrade) -> None:
    compared = [row for row in record.rows if row.rate is not None]
    header = ("label", "n", "agreement", "old only", "new only")
    echo_table(header, [(row.label, row.n, f"{row.rate:.4f}", row.old_only, row.new_only) for row in compared])
    unknown = [row.label for row in record.rows if row.rate is None and row.label not in record.kept]
    if record.kept:
        echo(f"kept from the old pool, since its problems are unknown (see --problems): {', '.join(record.kept)}")
    if unknown:
        echo(f"not compared, since the old pool did not record them: {', '.join(unknown)}")
    if record.flaky is not None:
        echo(f"flaky: {record.flaky} of {new.manifest['counts']['rollouts']} rollouts")
    if record.without_label:
        echo(f"without label: {record.without_label} rollouts; the machine was too busy to grade them")
    echo(describe_tests(new.manifest["tests"]))
    echo(f"pool {new.path}; see: probe pool show {new.path.name}")
