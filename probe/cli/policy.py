"""probe policy finetune, eval: train a LoRA on completions; evaluate a policy on held-out problems."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from probe.cli._frame import Real, Text, command, name_option, one_of, say
from probe.cli._running import evaluation_table
from probe.cli._settings import configured, given_settings, say_defaults, settings_options, verb
from probe.records.run import resolve_run
from probe.settings.words import Dtype
from replay_pools.base.errors import InputError
from replay_pools.base.files import locked, read_sealed
from replay_pools.environments.base import NAMES, SPLITS
from replay_pools.environments.demonstrations import COMPLETIONS, Completions
from replay_pools.environments.loopholes import LOOPHOLES

if TYPE_CHECKING:  # help texts must not import torch
    from probe.runs.finetune import Example
    from replay_pools.policy.load import Policy


@verb()
@name_option("adapter or model", required=True)
@click.option("--model", default="organism", show_default=True, help="Start from it, as in probe pool generate.")
@one_of("--completions", COMPLETIONS, "Learn completions of this kind.", required=True)
@click.option("--pool", help="Learn its rollouts that were paid for that, and write none.")
@click.option("--env", default="minicode", show_default=True, help=f"{NAMES}.")
@one_of("--split", SPLITS, "Split of the environment.", default="train")
@one_of("--mode", LOOPHOLES, "Loophole mode.", default="run_tests")
@click.option("--hint-rate", default=1.0, show_default=True, type=Real(0, 1), help="Share of prompts with the hint.")
@click.option("--steps", default=40, show_default=True, type=click.IntRange(1), help="Optimizer steps.")
@click.option("--batch", default=16, show_default=True, type=click.IntRange(1), help="Examples a step.")
@click.option("--lr", default=1e-3, show_default=True, type=Real(0, min_open=True), help="Highest learning rate.")
@click.option("--rank", default=16, show_default=True, type=click.IntRange(1), help="Rank of the LoRA.")
@click.option("--seed", default=0, show_default=True, type=int, help="Seed of LoRA's A and the examples.")
@click.option("--merge", is_flag=True, help="Write merged weights, for --model, instead of an adapter.")
@one_of("--dtype", get_args(Dtype), "Of the frozen weights.", default="float32")
@click.option("--device", default="auto", show_default=True, help="auto (CUDA if present), cpu, cuda, ...")
def finetune(
    name: str, model: str, completions: Completions, pool: str | None, merge: bool, out: Path, **options: Any
) -> Text:
    """Train a LoRA on completions and write out/adapters/NAME, for --adapter; or with --merge out/models/NAME, for
    --model.

    Completions are written for an environment's problems (canonical solutions, or exploits of a loophole mode), or
    taken from a pool. The same command gives the same weights, and keeps those that are there. Examples:

      probe policy finetune --completions honest --hint-rate 0.5 --merge --name warm

      probe policy finetune --model out/models/warm --completions hack --name my-teacher
    """
    from probe.runs.finetune import CARD, FinetuneSettings, demonstrated, stored
    from probe.runs.finetune import finetune as train
    from replay_pools.environments.demonstrations import demonstrator
    from replay_pools.environments.registry import get_environment
    from replay_pools.policy.load import load_policy
    from replay_pools.pool import open_pool, resolve_pool

    settings = FinetuneSettings(**{key: options[key] for key in ("steps", "batch", "lr", "rank", "seed")})
    directory = out / ("models" if merge else "adapters") / name
    make_examples: Callable[[Policy], Iterator[Example]]
    if pool is not None:
        opened = open_pool(resolve_pool(pool, out))
        source: dict[str, Any] = {"pool": opened.name, "files": opened.manifest["files"]}
        make_examples = partial(stored, pool=opened, completions=completions, seed=settings.seed)
    else:
        shown = {"mode": options["mode"], "hint_rate": options["hint_rate"]}
        demonstrate = demonstrator(completions, **shown)
        problems = get_environment(options["env"]).problems(options["split"])
        source = {"env": options["env"], "split": options["split"], **shown}
        make_examples = partial(demonstrated, problems=problems, demonstrate=demonstrate, seed=settings.seed)
    with locked(directory):
        policy = load_policy(model, dtype=options["dtype"], device=options["device"])
        made_from = {"completions": completions, **source}
        if not train(policy, make_examples(policy), settings, directory, made_from, merge=merge):
            say(f"{directory} already exists with the same settings")
    card = read_sealed(directory / CARD)
    losses, last = card["losses"], max(1, len(card["losses"]) // 10)
    yield f"{directory}: {len(losses)} steps of {card['settings']['batch']} {card['source']['completions']} completions"
    mean = sum(losses[-last:]) / last
    yield f"loss {losses[0]:.3f} nats a token at the first step, {mean:.3f} over the last {last}"
    use = ["--model", directory] if merge else ["--model", model, "--adapter", directory]
    yield f"next: {command('pool', 'generate', *use, '--name', 'NAME')}"
    return {"path": str(directory), **card}


@verb("eval")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@name_option("evaluation", default="eval", show_default=True)
@settings_options(
    "eval",
    "model.name: --model",
    "model.adapter",
    "rollouts.env",
    "evaluation.modes: --mode",
    "evaluation.without_hint",
    "evaluation.num_problems: --problems",
    "evaluation.rollouts_per_problem: --rollouts",
    "seed",
    "model.device",
)
def evaluate(run: Path | None, name: str, out: Path, **settings: Any) -> Text:
    """Evaluate the deployed policy of a training RUN (a directory, or a name in OUT/runs), or any --model; the rollouts
    are pools in out/evals/NAME.

    RUN is asked its own held-out problems, which it has not trained on; a model those of `probe train`. Examples:

      probe policy eval out/runs/train --mode run_tests,sentinel --without-hint

      probe policy eval --model organism --adapter teacher --problems 200 --name teacher
    """
    from probe.runs.evaluations import deployed_policy, evaluate_policy

    given, step, trained = given_settings(settings), 0, None
    if run is not None:
        if clash := [key for key in ("model.name", "model.adapter", "rollouts.env") if key in given]:
            raise InputError(clash[0], expected="none with RUN, which has its own", found=repr(given[clash[0]]))
        trained, step = deployed_policy(resolve_run(run, out))
    config = configured("eval", settings, start=None if trained is None else asdict(trained))
    if trained is None and config.evaluation.modes:  # `--without-hint` uses the mode of the rollouts
        config = replace(config, rollouts=replace(config.rollouts, mode=config.evaluation.modes[0]))
    directory = out / "evals" / name
    if run is None:  # a RUN gives what was not given
        say_defaults(settings, config)
    with locked(directory):
        row = evaluate_policy(config, directory, out, trained=trained, step=step, say=say)
    yield evaluation_table([row])
    yield f"rates on held-out problems with Wilson 95% intervals; rollouts in {directory}"
    return {"path": str(directory), **row}
