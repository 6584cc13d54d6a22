"""probe pool generate: sample groups from a policy, grade them, freeze them as a pool."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli._frame import dry_run_option, echo, echo_json, json_option, name_option, out_option
from probe.cli._output import echo_work
from probe.cli._progress import say, shown_progress
from probe.cli._settings import SettingsCommand, run_config, say_defaults, settings_options
from probe.records.root import elsewhere
from probe.settings.training import ModelConfig
from replay_pools.errors import InputError
from replay_pools.sampling.engines import Sampler

if TYPE_CHECKING:
    from replay_pools.generate import PoolPlan
    from replay_pools.sampling.engines import Engine


@click.command(cls=SettingsCommand)
@name_option("pool", required=True)
@click.option("--url", help="Of a vLLM or SGLang server: http://host:8000; --model names the tokenizer.")
@click.option("--workers", type=click.IntRange(1), help="Grading processes; default: the number of cores.")
@click.option("--twice", is_flag=True, help="Grade everything twice; labels that disagree make a rollout `flaky`.")
@click.option("--unsafe-local", is_flag=True, help="Grade without isolation; recorded, and excluded from verdicts.")
@settings_options(
    "generate",
    "model.name: --model",
    "model.adapter",
    "model.device",
    "rollouts.engine",
    "rollouts.served_model",
    "rollouts.env",
    "rollouts.split",
    "rollouts.mode",
    "rollouts.hint",
    "steps",
    "rollouts.group",
    "seed",
    "rollouts.sampler.temperature",
    "rollouts.sampler.max_new_tokens",
    "rollouts.cpu_limit",
    has_config=True,
)
@out_option
@dry_run_option
@json_option
@click.pass_context
def generate(
    ctx: click.Context,
    name: str,
    url: str | None,
    workers: int | None,
    twice: bool,
    unsafe_local: bool,
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
    from replay_pools.grading.tiers import describe_tier

    config = run_config(ctx, "generate", out)
    rollouts, steps, directory = config.rollouts, config.steps, out / "pools" / name
    _refuse_options(config.model, rollouts.engine, url, rollouts.served_model)
    plan = PoolPlan(
        env=rollouts.env,
        split=rollouts.split,
        mode=rollouts.mode,
        hint=rollouts.hint,
        steps=steps,
        group=rollouts.group,
        seed=config.seed,
    )
    if dry_run:
        _print_plan(plan, rollouts.sampler, Grader(unsafe_local=unsafe_local).isolation, directory, as_json)
        return
    source = (
        _served(str(config.model.name), url, rollouts.served_model)
        if rollouts.engine == "server"
        else _local(config.model, out)
    )
    grader = Grader(
        workers=workers,
        unsafe_local=unsafe_local,
        twice=twice,
        code_rule=rollouts.code_rule,
        cpu_s=rollouts.cpu_limit,
    )
    say_defaults(ctx, config, say)
    with grader, shown_progress():
        say(f"{_sampled_by(source.describe(rollouts.sampler))}; grading under {describe_tier(grader.isolation)}")
        generate_pool(directory, source, plan, rollouts.sampler, grader)
    num_rollouts = steps * rollouts.group
    if as_json:
        echo_json({"path": str(directory), "steps": steps, "rollouts": num_rollouts})
    else:
        echo(f"{steps} steps, {num_rollouts} rollouts in {directory}; see: probe pool show {name}{elsewhere(out)}")


def _print_plan(plan: "PoolPlan", sampler: Sampler, isolation: str, directory: Path, as_json: bool) -> None:
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
    echo(f"grading under isolation {isolation}; nothing was written")


def _refuse_options(model: ModelConfig, engine: str, url: str | None, served_model: str | None) -> None:
    """InputError for options of the other engine, which would be ignored."""
    if engine == "local":
        given = {"--url": url, "--served-model": served_model}
        fix = "add --engine server"
    else:
        plain = ModelConfig()
        given = {
            "--adapter": model.adapter,
            "--device": model.device if model.device != plain.device else None,
            "--set model.dtype": model.dtype if model.dtype != plain.dtype else None,
        }
        fix = "set it on the server"
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise InputError(f"--engine {engine}", expected="its own options", found=", ".join(names), fix=fix)


def _local(model: ModelConfig, out: Path) -> "Engine":
    from probe.runs.assemble import configured_policy
    from replay_pools.sampling.sample import LocalEngine

    return LocalEngine(configured_policy(model, out / "cache"))


def _served(model: str, url: str | None, served_model: str | None) -> "Engine":
    from replay_pools.policy.load import load_served_policy
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
