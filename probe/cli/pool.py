"""probe pool: generate, import, verify, show and regrade pools of rollouts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from probe.cli._completion import one_pool
from probe.cli._frame import LazyGroup, echo_json, echo_table, json_option, name_option, out_option
from replay_pools.errors import InputError
from replay_pools.pool import Pool, PoolWriter, open_pool, resolve_pool
from replay_pools.predecessor import Tokenize

VERBS = {
    "generate": ("probe.cli.pool_generate:generate", "Sample groups from a policy, grade and freeze them."),
    "regrade": ("probe.cli.pool_regrade:regrade", "Grade stored completions again and compare the labels."),
}
MOST_FAULTS = 20  # lines; the rest is counted


@click.group(cls=LazyGroup, verbs=VERBS)
def pool() -> None:
    """Generate, import, verify, show and regrade pools of rollouts."""


@pool.command()
@click.argument("pool_name", metavar="POOL", shell_complete=one_pool)
@out_option
@json_option
def show(pool_name: str, out: Path, as_json: bool) -> None:
    """Rates by mode, lengths, reward spread and advantage cells of POOL.

    POOL is a name, or a path with a slash. Example:  probe pool show teacher
    """
    opened = open_pool(resolve_pool(pool_name, out))
    from probe.cli._pool_summary import summarise  # scipy comes with it: neither --help nor an error waits for that

    summary = summarise(opened)
    if as_json:
        echo_json(summary)
    else:
        _print_summary(summary)


@pool.command()
@click.argument("pool_name", metavar="POOL", shell_complete=one_pool)
@click.option("--model", help="Model whose tokenizer makes prompt ids that POOL does not record.")
@out_option
@json_option
@click.pass_context
def verify(ctx: click.Context, pool_name: str, model: str | None, out: Path, as_json: bool) -> None:
    """Check hashes, fields, labels, rewards and prompt tails of POOL.

    Exit code 1 when a check fails. Example:  probe pool verify teacher
    """
    opened = open_pool(resolve_pool(pool_name, out), tokenize=_tokenizer(model))
    faults = opened.verify()
    if as_json:
        report = {"name": opened.name, "path": str(opened.path), "normalised": opened.normalised, "faults": faults}
        echo_json({**report, "counts": opened.manifest["counts"]})
    else:
        _print_faults(opened, faults)
    ctx.exit(1 if faults else 0)


@pool.command("import")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@name_option("pool", required=True)
@click.option("--model", help="Model that sampled the pool; its tokenizer makes the prompt ids.")
@out_option
@json_option
def import_(source: Path, name: str, model: str | None, out: Path, as_json: bool) -> None:
    """Make a pool, --name, of the rollouts logged in SOURCE, and say what was inferred.

    SOURCE is a directory of step_000.jsonl.gz, ...: one group a file, one rollout a line, with problem_id, messages,
    prompt, plen, completion, completion_ids, reward, hacked, gt_pass, fmt_ok. Example:

      probe pool import logged --name mine --model Qwen/Qwen3-4B
    """
    opened = open_sound_pool(source, model)
    if not opened.normalised:
        raise InputError(source, expected="a pool in the predecessor format", found="one in our format", fix="copy it")
    writer = PoolWriter(out / "pools" / name, header=opened.header())
    for group in opened.steps:
        writer.write_step(group[0].step, group)
    written = writer.finish()
    if as_json:
        echo_json({"path": str(written.path), "counts": written.manifest["counts"], "normalised": opened.normalised})
    else:
        _print_place(str(written.path), opened.normalised)


def open_sound_pool(path: Path, model: str | None) -> Pool:
    """The pool at `path`, any format; `model` is the one that sampled a predecessor pool.

    Raises:
        InputError: the first fault of the pool.
    """
    opened = open_pool(path, tokenize=_tokenizer(model))
    if faults := opened.verify():
        fix = "pass --model, the model that sampled the pool" if opened.normalised and model is None else ""
        found = f"{faults[0]} (1 of {len(faults)} faults)"
        raise InputError(path, expected="a consistent pool", found=found, fix=fix)
    if not opened.normalised:
        return opened
    learned = {"policy": {"base_model": model, "adapter": None}, "normalised": opened.normalised}
    return replace(opened, manifest=opened.manifest | learned)


def _tokenizer(model: str | None) -> Tokenize | None:
    """The tokenizer of a model, as text -> ids."""
    if model is None:
        return None
    from replay_pools.policy import load_tokenizer  # torch comes with it: only for those who ask

    tokenizer = load_tokenizer(model)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _print_place(path: str, normalised: tuple[str, ...] | list[str]) -> None:
    click.echo(f"pool {path}")
    for sentence in normalised:
        click.echo(f"  normalised: {sentence}")


def describe_tests(tests: dict[str, int] | None) -> str:
    """The line on what the oracle's verdicts of a pool rest on."""
    if tests is None:
        return "tests: not recorded"
    weaker = f"{tests['assertions']} assertions in the weaker class"
    return f"tests: {tests['problems']} problems, {tests['cases']} cases by answers, {weaker}"


def _print_faults(opened: Pool, faults: list[str]) -> None:
    _print_place(str(opened.path), opened.normalised)
    for fault in faults[:MOST_FAULTS]:
        click.echo(f"  fault: {fault}")
    if len(faults) > MOST_FAULTS:
        click.echo(f"  ... and {len(faults) - MOST_FAULTS} more")
    counts = opened.manifest["counts"]
    verdict = f"{len(faults)} faults" if faults else "ok"
    click.echo(f"{counts['steps']} steps, {counts['rollouts']} rollouts: {verdict}")


def _print_summary(summary: dict[str, Any]) -> None:
    _print_place(summary["path"], summary["normalised"])
    policy = summary["policy"]
    click.echo(f"policy {policy.get('base_model') or 'unknown'}, adapter {policy.get('adapter') or 'none'}")
    click.echo(f"{summary['steps']} steps, {summary['rollouts']} rollouts, finished by {summary['finish_reasons']}")
    click.echo(describe_tests(summary["tests"]) + "\n")
    rows = [
        (mode, label, part["rollouts"], f"{r['rate']:.3f}", f"{r['low']:.3f}", f"{r['high']:.3f}")
        for mode, part in summary["modes"].items()
        for label, r in part["rates"].items()
    ]
    echo_table(("mode", "label", "n", "rate", "95% low", "high"), rows)
    click.echo()
    measures = ("prompt_tokens", "completion_tokens", "reward", "reward_spread")
    rows = [(name, *(f"{value:.2f}" for value in summary[name].values())) for name in measures]
    echo_table(("", "min", "median", "mean", "max"), rows)
    click.echo("per step: " + " ".join(f"{value:g}" for value in summary["reward_spread_per_step"]))
    click.echo(f"steps without reward spread: {summary['frac_reward_zero_std']:.1%}\n")
    keys = ("hint", "hacked", "gt_pass", "sign", "rollouts")
    rows = [[cell[key] for key in keys] for cell in summary["advantage_cells"]]
    echo_table(("hint", "hacked", "gt_pass", "sign A", "n"), rows)
