"""probe pool import, verify, show: make pools from logs, and check and summarise pools."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, get_args

import click

from probe.cli._frame import echo, echo_json, echo_table, log_options, name_option, one_pool
from probe.cli._settings import verb
from replay_pools.pool import Pool, open_pool, resolve_pool
from replay_pools.regrade import count_missed, graded_code_rule
from replay_pools.rollout import CodeRule, Rollout, Template

MOST_FAULTS = 20  # lines; further faults are counted
# Labels with rates in `probe pool show`; None = unknown. To add one, add a row here.
LABELS: dict[str, Callable[[Rollout], bool | None]] = {
    "hacked": lambda rollout: rollout.hacked,
    "gt_pass": lambda rollout: rollout.gt_pass,
    "passed": lambda rollout: rollout.grade.passed,
    "exploited": lambda rollout: rollout.grade.exploited,
    "fmt_ok": lambda rollout: rollout.fmt_ok,
}
ZERO = 1e-9  # a smaller centred advantage is rounding error of the mean


@verb()
@click.argument("pool_name", metavar="POOL", shell_complete=one_pool)
def show(pool_name: str, out: Path, as_json: bool) -> None:
    """Rates by mode, lengths, reward spread and advantage cells of POOL.

    POOL is a name, or a path with a slash. Example:  probe pool show teacher
    """
    summary = summarise(open_pool(resolve_pool(pool_name, out)))
    if as_json:
        echo_json(summary)
        return
    _print_place(summary["path"], summary["normalised"])
    policy = summary["policy"]
    echo(f"policy {policy.get('base_model') or 'unknown'}, adapter {policy.get('adapter') or 'none'}")
    echo(f"{summary['steps']} steps, {summary['rollouts']} rollouts, finished by {summary['finish_reasons']}")
    if missed := summary["code_not_taken"]:
        echo(describe_missed(missed, summary["rollouts"], summary["code_rule"]))
    echo(describe_tests(summary["tests"]) + "\n")
    rows: list[tuple[Any, ...]] = []
    for mode, part in summary["modes"].items():
        for label, rate in part["rates"].items():
            numbers = [f"{rate[key]:.3f}" for key in ("rate", "low", "high")]
            rows.append((mode, label, rate["n"], *numbers))
    echo_table(("mode", "label", "n", "rate", "95% low", "high"), rows)
    echo()
    measures = ("prompt_tokens", "completion_tokens", "reward", "reward_spread")
    rows = [(name, *(f"{value:.2f}" for value in summary[name].values())) for name in measures]
    echo_table(("", "min", "median", "mean", "max"), rows)
    echo("per step: " + " ".join(f"{value:g}" for value in summary["reward_spread_per_step"]))
    echo(f"steps without reward spread: {summary['frac_reward_zero_std']:.1%}\n")
    keys = ("hint", "hacked", "gt_pass", "sign", "rollouts")
    rows = [tuple(cell[key] for key in keys) for cell in summary["advantage_cells"]]
    echo_table(("hint", "hacked", "gt_pass", "sign A", "n"), rows)


@verb()
@click.argument("pool_name", metavar="POOL", shell_complete=one_pool)
@click.option("--model", help="Model that sampled POOL: ids and texts are compared with its tokenizer.")
@click.pass_context
def verify(ctx: click.Context, pool_name: str, model: str | None, out: Path, as_json: bool) -> None:
    """Check hashes, fields, labels, rewards and prompt tails of POOL; with --model its token ids and texts as well.

    Exit code 1 when a check fails. Example:  probe pool verify teacher
    """
    opened = open_pool(resolve_pool(pool_name, out))
    faults = opened.verify()
    if model is not None and not faults:  # faults may make the steps unreadable
        from replay_pools.vocabulary import load_vocabulary  # imports torch, so only on demand

        faults = [str(fault) for fault in load_vocabulary(model).faults(opened)]
    counts = opened.manifest["counts"]
    if as_json:
        report = {"name": opened.name, "path": str(opened.path), "normalised": opened.normalised, "faults": faults}
        echo_json({**report, "counts": counts})
    else:
        _print_place(str(opened.path), opened.normalised)
        for fault in faults[:MOST_FAULTS]:
            echo(f"  fault: {fault}")
        if len(faults) > MOST_FAULTS:
            echo(f"  ... and {len(faults) - MOST_FAULTS} more")
        verdict = f"{len(faults)} faults" if faults else "ok"
        echo(f"{counts['steps']} steps, {counts['rollouts']} rollouts: {verdict}")
    ctx.exit(1 if faults else 0)


@verb("import")
@click.argument("source", type=click.Path(path_type=Path))
@name_option("pool", required=True)
@click.option("--model", required=True, help="Model that sampled the rollouts: `organism`, a directory or a hub id.")
@click.option(
    "--template",
    type=click.Choice(get_args(Template)),
    default="chat",
    show_default=True,
    help="Render prompts that were logged as messages by the tokenizer's template, or as `plain` text.",
)
@log_options
def import_(
    source: Path,
    name: str,
    model: str,
    template: Template,
    mapping: dict[str, str],
    format_name: str | None,
    limit: int | None,
    skip_bad: int,
    out: Path,
    as_json: bool,
) -> None:
    """Make a pool, --name, of the rollouts logged in SOURCE, and say what was recognised, chosen and inferred.

    SOURCE is a file (.jsonl, .json, .csv, also packed; .parquet, .arrow, .pt of slime, .eval of inspect) or a folder.
    A rollout needs a prompt, a completion and a reward; ids, masks, groups and labels are used if logged. Example:

      probe pool import rollouts.jsonl --name mine --model Qwen/Qwen3-4B --map reward=score,hacked=info.is_hack
    """
    from replay_pools.logs.columns import as_option  # only an import needs the log readers
    from replay_pools.logs.importing import check_log, import_log

    checked = check_log(source, format_name=format_name, mapping=mapping, skip_bad=skip_bad)
    pool = import_log(checked, name=name, out=out, model=model, template=template, limit=limit)
    log = pool.manifest["log"]
    if as_json:
        log = {key: log[key] for key in ("format", "mapping", "cannot_know")}
        report = {"path": str(pool.path), "counts": pool.manifest["counts"], **log, "ids": pool.manifest["ids"]}
        echo_json({**report, "normalised": pool.normalised})
        return
    echo(f"read as --format {log['format']} {as_option(log['mapping'])}: give these with other columns to correct them")
    echo(f"  cannot know: {log['cannot_know']}")
    _print_place(str(pool.path), pool.normalised)
    counts = pool.manifest["counts"]
    echo(f"{counts['steps']} groups, {counts['rollouts']} rollouts")


def _print_place(path: str, normalised: tuple[str, ...] | list[str]) -> None:
    echo(f"pool {path}")
    for sentence in normalised:
        echo(f"  {sentence}")


def describe_tests(tests: dict[str, int] | None) -> str:
    """Describe the tests behind the oracle's labels of a pool, in one line."""
    if tests is None:
        return "tests: not recorded"
    text = f"tests: {tests['problems']} problems, {tests['cases']} cases"
    if tests.get("left_out"):
        text += f"; {tests['left_out']} problems of the file left out: not all of their tests are a call == a literal"
    return text


def describe_missed(missed: int, rollouts: int, rule: CodeRule) -> str:
    """Describe the completions with definitions outside the code that the code rule takes, in one line."""
    return f"code: {missed} of {rollouts} completions have code, and code rule {rule} takes none of it"


def summarise(stored: Pool) -> dict[str, Any]:
    """Return the object of `probe pool show --json`: rates, lengths, reward spread, advantage cells."""
    rollouts = [rollout for group in stored.steps for rollout in group]
    rule = graded_code_rule(stored)
    modes = {}
    for mode in sorted({rollout.env_mode for rollout in rollouts}):
        of_mode = [rollout for rollout in rollouts if rollout.env_mode == mode]
        modes[mode] = {"rollouts": len(of_mode), "rates": rates(of_mode)}
    spreads = []
    for group in stored.steps:
        rewards = [rollout.reward for rollout in group]
        spreads.append(max(rewards) - min(rewards))
    return {
        "name": stored.name,
        "path": str(stored.path),
        "policy": stored.manifest["policy"],
        "tests": stored.manifest.get("tests"),
        "normalised": list(stored.normalised),
        "steps": len(stored.steps),
        "rollouts": len(rollouts),
        "code_rule": rule,
        "code_not_taken": count_missed(rollouts, rule),
        "modes": modes,
        "prompt_tokens": spread([rollout.plen for rollout in rollouts]),
        "completion_tokens": spread([rollout.num_sampled for rollout in rollouts]),
        "reward": spread([rollout.reward for rollout in rollouts]),
        "reward_spread": spread(spreads),
        "reward_spread_per_step": spreads,
        "frac_reward_zero_std": fmean(value == 0 for value in spreads) if spreads else None,
        "finish_reasons": dict(Counter(rollout.finish_reason for rollout in rollouts)),
        "advantage_cells": advantage_cells(stored.steps),
    }


def rates(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Return {label: n, count, rate and 95% Wilson interval} for every label known for `n` > 0 rollouts.

    The interval treats rollouts as independent. Rollouts of one prompt are not, so it is too narrow across prompts.
    """
    from probe.analysis.statistics.intervals import wilson_interval  # imports scipy, too slow for --help and errors

    table = {}
    for name, label in LABELS.items():
        known = [value for value in map(label, rollouts) if value is not None]
        count = sum(known)
        if interval := wilson_interval(count, len(known)):
            rate = count / len(known)
            table[name] = {"n": len(known), "count": count, "rate": rate, "low": interval.low, "high": interval.high}
    return table


def advantage_cells(groups: Sequence[Sequence[Rollout]]) -> list[dict[str, Any]]:
    """Count rollouts by hint x hacked x gt_pass x sign of the centred advantage r - mean(r of the group)."""
    cells: Counter[tuple[bool, bool | None, bool | None, str]] = Counter()
    for group in groups:
        mean = fmean(rollout.reward for rollout in group)
        for rollout in group:
            advantage = rollout.reward - mean
            sign = "+" if advantage > 0 else "-"
            if abs(advantage) < ZERO:
                sign = "0"
            cells[rollout.hint, rollout.hacked, rollout.gt_pass, sign] += 1
    keys = ("hint", "hacked", "gt_pass", "sign")
    return [
        {**dict(zip(keys, cell, strict=True)), "rollouts": count} for cell, count in sorted(cells.items(), key=repr)
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median, mean and maximum; empty without values."""
    if not values:
        return {}
    return {"min": min(values), "median": median(values), "mean": fmean(values), "max": max(values)}
