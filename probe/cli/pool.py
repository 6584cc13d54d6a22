"""probe pool import, verify, show: make pools from logs, and check and summarise pools."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, get_args

import click

from probe.cli._frame import Checked, Table, Text, log_options, name_option, one_of, pool_argument
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
# Of these, `probe pool show` has minimum, median, mean and maximum over the rollouts.
MEASURES: dict[str, Callable[[Rollout], float]] = {
    "prompt_tokens": lambda rollout: rollout.plen,
    "completion_tokens": lambda rollout: rollout.num_sampled,
    "reward": lambda rollout: rollout.reward,
}


@verb()
@pool_argument
def show(pool_name: str, out: Path) -> Text:
    """Rates by mode, lengths and reward spread of POOL.

    POOL is a name, or a path with a slash. Example:  probe pool show teacher
    """
    pool = open_pool(resolve_pool(pool_name, out))
    rollouts = [rollout for group in pool.steps for rollout in group]
    by_mode: dict[str, list[Rollout]] = {}
    for rollout in sorted(rollouts, key=lambda rollout: rollout.env_mode):
        by_mode.setdefault(rollout.env_mode, []).append(rollout)
    spreads = [max(rewards) - min(rewards) for rewards in ([one.reward for one in group] for group in pool.steps)]
    rule = graded_code_rule(pool)
    document: dict[str, Any] = {
        "name": pool.name,
        "path": str(pool.path),
        "policy": pool.manifest["policy"],
        "tests": pool.manifest.get("tests"),
        "normalised": list(pool.normalised),
        "steps": len(pool.steps),
        "rollouts": len(rollouts),
        "code_rule": rule,
        "code_not_taken": count_missed(rollouts, rule),
        "modes": {mode: {"rollouts": len(rows), "rates": rates(rows)} for mode, rows in by_mode.items()},
        **{name: spread([measure(rollout) for rollout in rollouts]) for name, measure in MEASURES.items()},
        "reward_spread": spread(spreads),
        "reward_spread_per_step": spreads,
        "frac_reward_zero_std": fmean(value == 0 for value in spreads) if spreads else None,
        "finish_reasons": dict(Counter(rollout.finish_reason for rollout in rollouts)),
    }
    yield from described_place(pool)
    policy = document["policy"]
    yield f"policy {policy.get('base_model') or 'unknown'}, adapter {policy.get('adapter') or 'none'}"
    yield f"{document['steps']} steps, {len(rollouts)} rollouts, finished by {document['finish_reasons']}"
    yield from described_grading(document["tests"], document["code_not_taken"], len(rollouts), rule)
    yield ""
    rows = []
    for mode, part in document["modes"].items():
        for label, rate in part["rates"].items():
            rows.append((mode, label, rate["n"], *(f"{rate[key]:.3f}" for key in ("rate", "low", "high"))))
    yield Table(("mode", "label", "n", "rate", "95% low", "high"), rows)
    yield ""
    rows = [(name, *(f"{value:.2f}" for value in document[name].values())) for name in (*MEASURES, "reward_spread")]
    yield Table(("", "min", "median", "mean", "max"), rows)
    yield "per step: " + " ".join(f"{value:g}" for value in spreads)
    yield f"steps without reward spread: {document['frac_reward_zero_std']:.1%}"
    return document


@verb()
@pool_argument
@click.option("--model", help="Model that sampled POOL: ids and texts are compared with its tokenizer.")
def verify(pool_name: str, model: str | None, out: Path) -> Text:
    """Check hashes, fields, labels, rewards and prompt tails of POOL; with --model its token ids and texts as well.

    Exit code 1 when a check fails. Example:  probe pool verify teacher
    """
    pool = open_pool(resolve_pool(pool_name, out))
    faults = pool.verify()
    if model is not None and not faults:  # faults may make the steps unreadable
        from replay_pools.policy.chat import id_faults
        from replay_pools.policy.load import load_served_policy  # imports torch, so only on demand

        faults = [*map(str, id_faults(load_served_policy(model), pool))]
    counts = pool.manifest["counts"]
    yield from described_place(pool)
    for fault in faults[:MOST_FAULTS]:
        yield f"  fault: {fault}"
    if len(faults) > MOST_FAULTS:
        yield f"  ... and {len(faults) - MOST_FAULTS} more"
    yield f"{counts['steps']} steps, {counts['rollouts']} rollouts: {f'{len(faults)} faults' if faults else 'ok'}"
    document = {"name": pool.name, "path": str(pool.path), "normalised": pool.normalised}
    return Checked({**document, "faults": faults, "counts": counts}, failed=bool(faults))


@verb("import")
@click.argument("source", type=click.Path(path_type=Path))
@name_option("pool", required=True)
@click.option("--model", required=True, help="Model that sampled the rollouts: `organism`, a directory or a hub id.")
@one_of("--template", get_args(Template), "Render logged messages by the tokenizer's, or as text.", default="chat")
@log_options
def import_(
    source: Path, name: str, model: str, template: Template, limit: int | None, out: Path, **reading: Any
) -> Text:
    """Make a pool, --name, of the rollouts logged in SOURCE, and say what was recognised, chosen and inferred.

    SOURCE is a file (.jsonl, .json, .csv, also packed; .parquet, .arrow, .pt of slime, .eval of inspect) or a folder.
    A rollout needs a prompt, a completion and a reward; ids, masks, groups and labels are used if logged. Example:

      probe pool import rollouts.jsonl --name mine --model Qwen/Qwen3-4B --map reward=score,hacked=info.is_hack
    """
    from replay_pools.logs.columns import as_option  # only an import needs the log readers
    from replay_pools.logs.importing import check_log, import_log

    pool = import_log(check_log(source, **reading), name=name, out=out, model=model, template=template, limit=limit)
    log, counts = pool.manifest["log"], pool.manifest["counts"]
    yield f"read as --format {log['format']} {as_option(log['mapping'])}: give these with other columns to correct them"
    yield from described_place(pool)
    yield f"{counts['steps']} groups, {counts['rollouts']} rollouts"
    log = {key: log[key] for key in ("format", "mapping")}
    document = {"path": str(pool.path), "counts": counts, **log, "ids": pool.manifest["ids"]}
    return {**document, "normalised": pool.normalised}


def described_place(pool: Pool) -> Iterator[str]:
    """Yield the path of a pool, and what its import chose, repaired and doubts."""
    yield f"pool {pool.path}"
    for sentence in pool.normalised:
        yield f"  {sentence}"


def described_grading(tests: dict[str, int] | None, missed: int, rollouts: int, rule: CodeRule) -> Iterator[str]:
    """Yield the completions with code that the rule does not take, then the tests behind the oracle's labels."""
    if missed:
        yield f"code: {missed} of {rollouts} completions have code, and code rule {rule} takes none of it"
    if tests is None:
        yield "tests: not recorded"
        return
    text = f"tests: {tests['problems']} problems, {tests['cases']} cases"
    if left_out := tests.get("left_out"):
        text += f"; {left_out} problems of the file left out: not all of their tests are a call == a literal"
    yield text


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


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median, mean and maximum; empty without values."""
    if not values:
        return {}
    return {"min": min(values), "median": median(values), "mean": fmean(values), "max": max(values)}
