"""probe pool generate, regrade: sample and grade groups from a policy; grade stored completions again."""

from pathlib import Path
from typing import Any

import click

from probe.cli._frame import AnyFunction, Table, Text, command, name_option, one_of, pool_argument, say
from probe.cli._settings import MODEL, configured, say_defaults, settings_options, verb
from probe.cli.pool import MOST_FAULTS, described_grading
from replay_pools.base.errors import InputError
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.pool import open_pool, resolve_pool
from replay_pools.regrade import count_missed, graded_code_rule, regrade_pool
from replay_pools.rollout import CODE_RULES, MIN_CPU_S, CodeRule


def grader_options(function: AnyFunction) -> AnyFunction:
    """Add `--workers --unsafe-local`, as arguments of `Grader`."""
    text = "Grade without isolation; recorded, and excluded from verdicts."
    function = click.option("--unsafe-local", is_flag=True, help=text)(function)
    text = "Grading processes; default: the number of cores."
    return click.option("--workers", type=click.IntRange(1), help=text)(function)


@verb()
@name_option("pool", required=True)
@click.option("--url", help="Sample from this vLLM server, http://host:8000. --model names the tokenizer.")
@grader_options
@settings_options(
    "generate",
    *MODEL,
    "model.adapter",
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
def generate(name: str, url: str | None, workers: int | None, unsafe_local: bool, out: Path, **settings: Any) -> Text:
    """Sample --steps groups of --group rollouts, grade them, and write them to out/pools/NAME.

    Repeat the command to continue a killed run; the same seed gives the same bytes. Examples:

      probe pool generate --adapter teacher --hint --name teacher

      probe pool generate --url http://127.0.0.1:8000 --model Qwen/Qwen3-4B --name served
    """
    from replay_pools.generate import PoolPlan, generate_pool
    from replay_pools.grading.grade import Grader
    from replay_pools.grading.tiers import describe_tier

    config = configured("generate", settings, out)
    rollouts, steps, directory = config.rollouts, config.steps, out / "pools" / name
    asked = {key: getattr(rollouts, key) for key in ("env", "split", "mode", "hint", "group")}
    plan = PoolPlan(**asked, steps=steps, seed=config.seed)
    if url is not None and config.model.adapter is not None:
        raise InputError("--url", expected="none with --adapter: a server has its own", found=url)
    if url is not None:
        from replay_pools.policy.load import load_served_policy
        from replay_pools.serving import Server, connect

        policy = load_served_policy(str(config.model.name), config.model.template)
        server = Server(url=url, timeout_s=rollouts.server_timeout_s)
        source = connect(server, policy, served_model=rollouts.served_model)
    else:
        from probe.runs.policies import configured_policy
        from replay_pools.sampling import LocalEngine

        source = LocalEngine(configured_policy(config.model, out / "cache"))
    grader = Grader(
        workers=workers, unsafe_local=unsafe_local, code_rule=rollouts.grading_rule, cpu_s=rollouts.cpu_limit
    )
    say_defaults(settings, config)
    with grader:
        say(f"{_sampled_by(source.describe(rollouts.sampler))}; grading under {describe_tier(grader.isolation)}")
        generate_pool(directory, source, plan, rollouts.sampler, grader)
    num_rollouts = steps * rollouts.group
    yield f"{steps} steps, {num_rollouts} rollouts in {directory}; see: {command('pool', 'show', name)}"
    return {"path": str(directory), "steps": steps, "rollouts": num_rollouts}


def _sampled_by(header: dict[str, Any]) -> str:
    """Name the policy and its server."""
    policy, server = header["policy"], header.get("engine")
    text = f"policy {policy['base_model']}, adapter {policy['adapter'] or 'none'}"
    if server is None:
        return text
    is_recorded = server["logprobs_recorded"]
    logprobs = "recorded" if is_recorded else "not recorded (they are of temperature 1, top-p 1 and top-k 0)"
    return f"{text}, model {server['model']} of {server['server']} {server['version']}; log-probabilities {logprobs}"


@verb()
@pool_argument
@name_option("new pool", required=True)
@click.option("--problems", type=click.Path(path_type=Path), help="LeetCode jsonl with the problems of POOL, by id.")
@one_of("--mode", LOOPHOLES, "Loophole mode, if POOL does not record one.")
@one_of("--code-rule", CODE_RULES, "Code blocks that count. Default: POOL's rule.")
@click.option("--cpu-limit", type=click.IntRange(1), help="CPU seconds, as in pool generate. Default: POOL's, or 4.")
@grader_options
def regrade(
    pool_name: str,
    name: str,
    problems: Path | None,
    mode: str | None,
    code_rule: CodeRule | None,
    cpu_limit: int | None,
    out: Path,
    **grading: Any,
) -> Text:
    """Grade every completion of POOL again, write out/pools/NAME, and print the agreement of the labels.

    POOL stays unchanged. The new pool's manifest has the agreement too, for `probe analyze`. Repeat the command to
    continue a killed run. Example:

      probe pool regrade teacher --name teacher-again
    """
    from replay_pools.grading.grade import Grader
    from replay_pools.grading.tiers import describe_tier

    source = open_pool(resolve_pool(pool_name, out))
    if faults := source.verify():
        found = f"{len(faults)} faults: {'; '.join(faults[:MOST_FAULTS])}"
        raise InputError(source.path, expected="a consistent pool", found=found)
    env = f"leetcode:{problems}" if problems else None
    rule = code_rule or graded_code_rule(source, env)
    # The old pool's limit keeps labels comparable; imported and older pools record none.
    cpu_s = cpu_limit or source.manifest["grader"].get("cpu_s", MIN_CPU_S)
    with Grader(**grading, code_rule=rule, cpu_s=cpu_s) as grader:
        say(f"pool {source.path}; code rule {rule}; grading under {describe_tier(grader.isolation)}")
        new = regrade_pool(out / "pools" / name, source, grader, env=env, mode=mode)
    missed = count_missed((rollout for group in new.steps for rollout in group), rule)
    rows, counts = new.manifest["regraded_from"]["agreement"], new.manifest["counts"]
    known = [row for row in rows if row["n"]]
    cells = [(row["label"], row["n"], f"{row['rate']:.4f}", row["old_only"], row["new_only"]) for row in known]
    yield Table(("label", "n", "agreement", "old only", "new only"), cells)
    if unknown := [row["label"] for row in rows if not row["n"]]:
        yield f"not compared, because the old pool did not record them: {', '.join(unknown)}"
    yield from described_grading(new.manifest["tests"], missed, counts["rollouts"], rule)
    yield f"pool {new.path}; see: {command('pool', 'show', name)}"
    recorded = {key: new.manifest[key] for key in ("regraded_from", "counts", "tests")}
    return {"path": str(new.path), **recorded, "code_rule": rule, "code_not_taken": missed}
