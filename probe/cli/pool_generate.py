"""probe pool generate: sample groups from a policy, grade them, freeze them as a pool."""

from pathlib import Path

import click

from probe.cli._frame import echo_json, json_option, name_option, out_option
from probe.cli._progress import progress, say
from probe.cli._shared_options import model_options
from replay_pools.environments.base import SPLITS, Split
from replay_pools.environments.loopholes import LOOPHOLES


@click.command()
@name_option("pool", required=True)
@click.option("--model", default="organism", show_default=True, help="organism, a directory, a .gguf file or a hub id.")
@click.option("--adapter", help="`teacher` (of the organism) or a PEFT directory; merged before sampling.")
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
    type=click.FloatRange(0, min_open=True),
    help="1 = the policy's own law, which recorded log-probabilities need.",
)
@click.option("--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1, min_open=True), help="1 = off.")
@click.option("--top-k", default=0, show_default=True, type=click.IntRange(0), help="0 = off.")
@click.option("--max-new-tokens", default=160, show_default=True, type=click.IntRange(1), help="Of a completion.")
@click.option("--workers", type=click.IntRange(1), help="Grading processes; default: the number of cores.")
@click.option("--twice", is_flag=True, help="Grade everything twice; labels that disagree make a rollout `flaky`.")
@click.option("--unsafe-local", is_flag=True, help="Grade without isolation; recorded, and excluded from verdicts.")
@model_options
@out_option
@json_option
def generate(
    name: str,
    model: str,
    adapter: str | None,
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
    as_json: bool,
) -> None:
    """Sample --steps groups of --group rollouts, grade them, and freeze them as out/pools/NAME.

    A killed run continues where it stopped; the same seed gives the same bytes. Example:

      probe pool generate --adapter teacher --hint --name teacher
    """
    from replay_pools.generate import PoolPlan, generate_pool
    from replay_pools.grading.grade import Grader
    from replay_pools.policy import load_policy
    from replay_pools.sampling import Sampler

    directory = out / "pools" / name
    policy = load_policy(model, adapter=adapter, dtype=dtype, device=device)
    plan = PoolPlan(env=env, split=split, mode=mode, hint=hint, steps=steps, group=group, seed=seed)
    sampler = Sampler(temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=max_new_tokens)
    with Grader(workers=workers, unsafe_local=unsafe_local, twice=twice) as grader:
        say(f"policy {model}, adapter {adapter or 'none'}; grading under isolation {grader.isolation}")
        generate_pool(directory, policy, plan, sampler, grader, progress=progress("steps"))
    if as_json:
        echo_json({"path": str(directory), "steps": steps, "rollouts": steps * group})
    else:
        click.echo(f"{steps} steps, {steps * group} rollouts in {directory}; see: probe pool show {name}")
