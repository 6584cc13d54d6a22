"""probe finetune: train a LoRA on completions: a teacher that hacks, or a policy that solves."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from probe.cli._frame import Real, echo, echo_json, json_option, name_option, out_option
from probe.cli._progress import say, shown_progress
from probe.cli.completion import one_pool
from probe.records.root import elsewhere
from probe.settings.words import Dtype
from replay_pools.environments.base import NAMES, SPLITS
from replay_pools.environments.demonstrations import COMPLETIONS, Completions
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.errors import InputError
from replay_pools.storage.lock import locked

if TYPE_CHECKING:
    from probe.runs.finetune import Example
    from replay_pools.policy.load import Policy

OF_DEMONSTRATIONS = ("env", "split", "mode", "hint_rate", "flavours")  # what a pool brings with it
DTYPES = get_args(Dtype)


@click.command()
@name_option("adapter or model", required=True)
@click.option("--model", default="organism", show_default=True, help="As in probe pool generate.")
@click.option("--completions", required=True, type=click.Choice(COMPLETIONS), help="What is learnt.")
@click.option("--pool", shell_complete=one_pool, help="Learn its rollouts that were paid for that. Default: written.")
@click.option("--env", default="minicode", show_default=True, help=f"{NAMES}.")
@click.option("--split", default="train", show_default=True, type=click.Choice(SPLITS), help="Of the environment.")
@click.option("--mode", default="run_tests", show_default=True, type=click.Choice([*LOOPHOLES]), help="Loophole mode.")
@click.option("--hint-rate", default=1.0, show_default=True, type=Real(0, 1), help="Share of prompts with the hint.")
@click.option("--flavours", default="", help="Exploits to show, by commas. Default: all of the mode.")
@click.option("--steps", default=40, show_default=True, type=click.IntRange(1), help="Optimizer steps.")
@click.option("--batch", default=16, show_default=True, type=click.IntRange(1), help="Examples of a step.")
@click.option("--lr", default=1e-3, show_default=True, type=Real(0, min_open=True), help="Highest rate of AdamW.")
@click.option("--rank", default=16, show_default=True, type=click.IntRange(1), help="Of the LoRA.")
@click.option("--seed", default=0, show_default=True, type=int, help="Of LoRA's A and of the examples.")
@click.option("--merge", is_flag=True, help="Write whole weights, for --model, and no adapter.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(DTYPES), help="Of frozen weights.")
@click.option("--device", default="auto", show_default=True, help="auto (CUDA when present), cpu, cuda, ...")
@out_option
@json_option
@click.pass_context
def finetune(
    ctx: click.Context,
    name: str,
    model: str,
    completions: Completions,
    pool: str | None,
    flavours: str,
    merge: bool,
    dtype: str,
    device: str,
    out: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a LoRA on completions and write out/adapters/NAME, for --adapter; or with --merge out/models/NAME, for
    --model.

    Completions are written for the problems of an environment (canonical solutions, or exploits of a loophole mode), or
    taken from a pool. The directory appears when it is whole; a run that was killed is continued by the same command,
    from a checkpoint of every ten steps. Examples:

      probe finetune --completions honest --hint-rate 0.5 --merge --name warm

      probe finetune --model out/models/warm --completions hack --name teacher-of-mine
    """
    from probe.runs.finetune import FinetuneSettings, demonstrated, stored
    from probe.runs.finetune import finetune as train
    from replay_pools.environments.demonstrations import Demonstrator
    from replay_pools.environments.registry import get_environment
    from replay_pools.policy.load import load_policy
    from replay_pools.pool import open_pool, resolve_pool

    settings = FinetuneSettings(**{key: options[key] for key in ("steps", "batch", "lr", "rank", "seed")})
    directory = out / ("models" if merge else "adapters") / name
    make_examples: Callable[[Policy], Iterator[Example]]
    if pool is not None:
        _refuse_beside_pool(ctx)
        opened = open_pool(resolve_pool(pool, out))
        source: dict[str, Any] = {"pool": opened.name, "files": opened.manifest["files"]}
        make_examples = partial(stored, pool=opened, completions=completions, seed=settings.seed)
    else:
        demonstrator = Demonstrator(
            completions=completions,
            mode=options["mode"],
            hint_rate=options["hint_rate"],
            flavours=tuple(filter(None, flavours.split(","))),
        )
        problems = get_environment(options["env"]).problems(options["split"])
        source = {"env": options["env"], "split": options["split"], **asdict(demonstrator)}
        make_examples = partial(demonstrated, problems=problems, demonstrator=demonstrator, seed=settings.seed)
    with locked(directory), shown_progress():
        policy = load_policy(model, dtype=dtype, device=device)
        made_from = {"completions": completions, **source}
        if not train(policy, make_examples(policy), settings, directory, made_from, merge=merge):
            say(f"{directory} is there already, of the same settings")
    _print(directory, merge, model, out, as_json)


def _refuse_beside_pool(ctx: click.Context) -> None:
    """InputError for options of written demonstrations, which would be ignored."""
    source = click.core.ParameterSource.COMMANDLINE
    given = [f"--{key.replace('_', '-')}" for key in OF_DEMONSTRATIONS if ctx.get_parameter_source(key) is source]
    if given:
        raise InputError("--pool", expected="its own prompts and completions", found=", ".join(given))


def _print(directory: Path, merge: bool, model: str, out: Path, as_json: bool) -> None:
    """What was trained, read back from its card."""
    from probe.runs.finetune import CARD
    from replay_pools.storage.files import read_json

    card = read_json(directory / CARD)
    if as_json:
        echo_json({"path": str(directory), **card})
        return
    losses, last = card["losses"], max(1, len(card["losses"]) // 10)
    echo(f"{directory}: {len(losses)} steps of {card['settings']['batch']} {card['source']['completions']} completions")
    mean = sum(losses[-last:]) / last
    echo(f"loss {losses[0]:.3f} nats a token at the first step, {mean:.3f} over the last {last}")
    use = ["--model", str(directory)] if merge else ["--model", model, "--adapter", str(directory)]
    echo(f"next: probe pool generate {shlex.join(use)} --name NAME{elsewhere(out)}")
