"""probe pool generate: sample groups from a policy, grade them, freeze them as a pool."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from probe.cli._frame import Real, dry_run_option, echo_json, elsewhere, json_option, name_option, out_option
from probe.cli._progress import say, shown_progress
from probe.cli._shared_options import model_options
from probe.cli._sizes import echo_work
from replay_pools.environments.base import SPLITS, Split
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.errors import InputError

if TYPE_CHECKING:
    from replay_pools.engines import Engine
    from replay_pools.generate import PoolPlan
    from replay_pools.sampling import Sampler

LOCAL_ONLY = ("adapter", "dtype", "device")  # options of the local engine
SERVER_ONLY = ("url", "served_model")


@click.command()
@name_option("pool", required=True)
@click.option("--model", default="organism", show_default=True, help="organism, a directory, a .gguf file or a hub id.")
@click.option("--adapter", help="`teacher` (of the organism) or a PEFT directory; merged before sampling.")
@click.option(
    "--engine", default="local", show_default=True, type=click.Choice(["local", "server"]), help="What samples."
)
@click.option("--url", help="Of a vLLM or SGLang server: http://host:8000; --model names the tokenizer.")
@click.option("--served-model", help="Model (or adapter) on the server. Default: its one base model.")
@click.option("--env", default="minicode", show_default=True, help="minicode or leetcode:FILE.jsonl.")
@click.option("--split", default="train", show_default=True, type=click.Choice(SPLITS), help="Of the environment.")
@click.option("--mode", default="run_tests", show_default=True, type=click.Choice([*LOOPHOLES]), help="Loophole mode.")
@click.option("--hint/--no-hint", default=False, show_default=True, help="Tell how submissions are evaluated.")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(1), help="Groups; one problem each.")
@click.option("--group", default=8, show_default=True, type=click.IntRange(1), help="Rollouts in a group.")
@click.option("--seed", default=0, show_default=True, help="Of the choice of problems and of the sampling.")
@click.option(
    "--temperature",
    default=1.0,
    show_default=True,
    type=Real(0, min_open=True),
    help="1 = the policy's own law, which recorded log-probabilities need.",
)
@click.option("--top-p", default=1.0, show_default=True, type=Real(0, 1, min_open=True), help="1 = off.")
@click.option("--top-k", default=0, show_default=True, type=click.IntRange(0), help="0 = off.")
@click.option("--max-new-tokens", default=160, show_default=True, type=click.IntRange(1), help="Of a completion.")
@click.option("--workers", type=click.IntRange(1), help="Grading processes; default: the number of cores.")
@click.option("--twice", is_flag=True, help="Grade everything twice; labels that disagree make a rollout `flaky`.")
@click.option("--unsafe-local", is_flag=True, help="Grade without isolation; recorded, and excluded from verdicts.")
@model_options
@out_option
@dry_run_option
@json_option
@click.pass_context
def generate(
    ctx: click.Context,
    name: str,
    model: str,
    adapter: str | None,
    engine: str,
    url: str | None,
    served_model: str | None,
    env: str,
    split: Split,
    mode: str,
    hint: bool,
    steps: int,
    group: int,
    seed: int,
    temperature: float,
    top_p: float,
    top_k: int,
    max_new_tokens: int,
    workers: int | None,
    twice: bool,
    unsafe_local: bool,
    dtype: str,
    device: str,
    out: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Sample --steps groups of --group rollouts, grade them, and freeze them as out/pools/NAME.

    A killed run continues where it stopped; the same seed gives the same bytes. Examples:

      probe pool generate --adapter teacher --hint --name teacher

      probe pool generate --engine server --url http://127.0.0.1:8000 --model Qwen/Qwen3-4B --name served
    """
    from replay_pools.generate import PoolPlan, generate_pool
    from replay_pools.grading.grade import Grader
    from replay_pools.sampling import Sampler

    directory = out / "pools" / name
    _refuse_options(ctx, engine)
    plan = PoolPlan(env=env, split=split, mode=mode, hint=hint, steps=steps, group=group, seed=seed)
    sampler = Sampler(temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=max_new_tokens)
    if dry_run:
        _print_plan(plan, sampler, Grader(unsafe_local=unsafe_local).isolation, directory, as_json)
        return
    source = _served(model, url, served_model) if engine == "server" else _local(model, adapter, dtype, device)
    with Grader(workers=workers, unsafe_local=unsafe_local, twice=twice) as grader, shown_progress():
        say(f"{_sampled_by(source.describe(sampler))}; grading under isolation {grader.isolation}")
        generate_pool(directory, source, plan, sampler, grader)
    if as_json:
        echo_json({"path": str(directory), "steps": steps, "rollouts": steps * group})
    else:
        click.echo(
            f"{steps} steps, {steps * group} rollouts in {directory}; see: probe pool show {name}{elsewhere(out)}"
        )


def _print_plan(plan: "PoolPlan", sampler: "Sampler", isolation: str, directory: Path, as_json: bool) -> None:
    """What would be sampled: on how many problems, and how much at most."""
    from replay_pools.generate import choose_problems
    from replay_pools.pool import MANIFEST_NAME, step_files

    rollouts = plan.steps * plan.group
    work = {
        "steps": plan.steps,
        "problems": len({problem.problem_id for problem in choose_problems(plan)}),
        "rollouts": rollouts,
        "completion tokens at most": rollouts * sampler.max_new_tokens,
    }
    done = len(step_files(directory)) if directory.is_dir() else 0
    state = f"continues after {done} steps" if done else "new"
    if (directory / MANIFEST_NAME).exists():
        state = f"holds {done} steps of a complete pool"
    if as_json:
        echo_json({"path": str(directory), "state": state, "work": work, "isolation": isolation})
        return
    echo_work(str(directory), state, work)
    click.echo(f"grading under isolation {isolation}; nothing was written")


def _refuse_options(ctx: click.Context, engine: str) -> None:
    """An option of the other engine would be ignored, so it is refused."""
    names = LOCAL_ONLY if engine == "server" else SERVER_ONLY
    if given := [name for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        fix = "set it on the server" if engine == "server" else "add --engine server"
        raise InputError(f"--engine {engine}", expected="its own options", found=options, fix=fix)


def _local(model: str, adapter: str | None, dtype: str, device: str) -> "Engine":
    from replay_pools.engines import LocalEngine
    from replay_pools.policy import load_policy

    return LocalEngine(load_policy(model, adapter=adapter, dtype=dtype, device=device))


def _served(model: str, url: str | None, served_model: str | None) -> "Engine":
    from replay_pools.policy import load_served_policy
    from replay_pools.serving.connection import Connection
    from replay_pools.serving.engine import connect

    if url is None:
        raise InputError("--engine server", expected="--url http://host:port", found="none")
    return connect(Connection(url=url), load_served_policy(model), served_model=served_model)


def _sampled_by(header: dict[str, Any]) -> str:
    """What samples, in words."""
    policy, server = header["policy"], header.get("engine")
    text = f"policy {policy['base_model']}, adapter {policy['adapter'] or 'none'}"
    if server is None:
        return text
    logprobs = (
        "recorded" if server["logprobs_recorded"] else f"not recorded (the server's law: {server['logprobs_law']})"
    )
    return f"{text}, model {server['model']} of {server['server']} {server['version']}; log-probabilities {logprobs}"
