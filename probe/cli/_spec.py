"""Specs on the command line: read, and their options parsed by the very verb that will run them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probe.cli import cli
from probe.experiments.jobs import ONE_PASS, flags, frozen, pool_jobs
from probe.experiments.prereg import load_spec, option_tables
from probe.experiments.spec import Condition, Option, Spec
from replay_pools.errors import InputError
from replay_pools.nested import flat

if TYPE_CHECKING:
    from probe.experiments.vacuity import Resolved, Settings

MODEL_OPTIONS = ("dtype", "lora_rank", "svd_rank", "svd_storage")  # of the footprint


def open_spec(path: Path) -> Spec:
    """Read a spec and check every option and value with the parser of its verb.

    Raises:
        InputError: what `load_spec` refuses, an option that the verb does not have, a value that it does not take.
    """
    from probe.experiments.answerable import check_answerable

    spec = load_spec(path)
    verb = _find(spec, "base.verb", (spec.base.verb,))
    for key, options in option_tables(spec):
        _check_names(spec, key, verb, options)
    resolved(spec)
    check_answerable(spec)
    for pool, job in zip(spec.pools, pool_jobs(spec, Path("out")), strict=True):
        where = f"pools.{pool.name}"
        generate = _find(spec, where, ("pool", "generate"))
        _check_names(spec, where, generate, pool.options)
        _parse(spec, where, generate, job.args[2:])
    return spec


def resolved(spec: Spec) -> "Resolved":
    """What the verb makes of every condition, defaults included.

    Raises:
        InputError: a value that the verb does not take; file, condition and field are named.
    """
    resolve = _training if spec.base.verb == "train" else _replay
    return {condition.name: resolve(spec, condition) for condition in spec.conditions}


def _replay(spec: Spec, condition: Condition) -> "Settings":
    from probe.experiments.vacuity import Settings
    from probe.objective.objective import Objective
    from probe.runs.conditions import parse_conditions
    from probe.runs.config import ModelConfig

    where, verb, given = f"conditions.{condition.name}", _find(spec, "base.verb", ("replay",)), spec.options(condition)
    alone = {name: value for name, value in given.items() if name in _loss_alone(verb)}
    arms = ("--arm", ",".join(spec.arms_of(condition)))
    own = _parse(spec, where, verb, [*arms, *flags({name: given[name] for name in given if name not in alone})])
    try:
        base = Objective(**{name: own[name] for name in ONE_PASS if name in own})
        text = ",".join(f"{name}={value}" for name, value in alone.items())
        loss = parse_conditions([f"{condition.name}:{text}"], base)[0].objective
    except InputError as error:
        raise InputError(f"{spec.path} {where}", expected=error.expected, found=error.found) from error
    return Settings(
        loss=loss,
        given=frozenset(given),
        values=own | asdict(loss),
        arms=spec.arms_of(condition),
        frozen=frozen(spec, condition),
        group=own["per_pool"] * len(own["replay_dirs"]),
        prompts_per_step=1,
        steps=own["steps"],
        pools=own["replay_dirs"],
        model=ModelConfig(name=own["model"], **{name: own[name] for name in MODEL_OPTIONS}),
        k=own["k"],
        pairs=own["pairs"],
    )


def _training(spec: Spec, condition: Condition) -> "Settings":
    from probe.cli.train import configured
    from probe.experiments.vacuity import Settings

    where, verb, given = f"conditions.{condition.name}", _find(spec, "base.verb", ("train",)), spec.options(condition)
    options = _parse(spec, where, verb, ["--arm", spec.arms_of(condition)[0], *flags(given)])
    names = ("preset", "settings", "arm", "seed", "steps", "hint", "token_attribution", "preregistered")
    try:
        config = configured(**{name: options[name] for name in names})
    except InputError as error:
        raise InputError(f"{spec.path} {where}: {error.where}", expected=error.expected, found=error.found) from error
    rollouts, extraction = config.rollouts, config.intervention.extraction
    return Settings(
        loss=config.objective,
        given=frozenset(name.removeprefix("set.").removeprefix("objective.") for name in flat(given)),
        values={name: value for name, value in flat(asdict(config)).items() if name != "intervention.arm"},
        arms=spec.arms_of(condition),
        frozen=False,
        group=rollouts.group,
        prompts_per_step=rollouts.prompts_per_step,
        steps=config.optimizer.steps,
        pools=(rollouts.teacher.pool,) if rollouts.teacher else (),
        model=config.model,
        k=extraction.k,
        pairs=extraction.pairs,
    )


def _find(spec: Spec, key: str, names: Sequence[str]) -> click.Command:
    """The command `probe NAME...`."""
    command: click.Command | None = cli
    for name in names:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
        if command is None:
            where = f"{spec.path} {key}"
            raise InputError(where, expected="a verb of this version of probe", found=f"{name!r}, which is not there")
    return command


def _names(command: click.Command) -> set[str]:
    """The long names of a command's options, with `_` for `-`."""
    return {
        name.removeprefix("--").replace("-", "_")
        for parameter in command.params
        for name in parameter.opts
        if name.startswith("--")
    }


def _loss_alone(verb: click.Command) -> set[str]:
    """The settings of the loss that a verb takes through `--condition` alone."""
    names = _names(verb)
    return {*ONE_PASS} - names if "condition" in names else set()


def _check_names(spec: Spec, key: str, command: click.Command, options: Mapping[str, Option]) -> None:
    known = _names(command) | _loss_alone(command)
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            raise InputError(
                f"{spec.path} {key}.{name}",
                expected=f"an option of probe {command.name}",
                found="none of that name",
                fix=f"did you mean {close[0]}?" if close else "see its --help; write _ for -",
            )
    for parameter in command.params:
        texts = [name for name in options if isinstance(options[name], str) and parameter.name == name]
        if texts and isinstance(parameter.type, (click.IntRange, click.FloatRange)):
            where = f"{spec.path} {key}.{texts[0]}"
            raise InputError(where, expected="a number", found=f"a text, {options[texts[0]]!r}")
        switched = [name for name in options if options[name] is False and f"--{name}" in parameter.opts]
        if switched and parameter.secondary_opts:  # not a flag that is left off: its default may be on
            where = f"{spec.path} {key}.{switched[0]}"
            raise InputError(where, expected="true, or the setting itself under `set`", found="false")


def _parse(spec: Spec, key: str, command: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    try:
        with command.make_context(command.name, list(arguments)) as context:
            return dict(context.params)
    except click.UsageError as error:
        where = f"{spec.path} {key}"
        raise InputError(where, expected=f"options of probe {command.name}", found=error.format_message()) from error
