"""Specs on the command line: read, and their options parsed by the very verb that will run them."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from probe.cli import cli
from probe.jobs import ONE_PASS, flags, pool_jobs
from probe.prereg import load_spec, option_tables
from probe.spec import Condition, Option, Spec
from replay_pools.errors import InputError


def open_spec(path: Path) -> Spec:
    """Read a spec and check every option and value with the parser of its verb.

    Raises:
        InputError: what `load_spec` refuses, a verb that does not exist or does not record its spec, an option that the
            verb does not have, a value that the option does not take.
    """
    spec = load_spec(path)
    verb = _find(spec, "base.verb", (spec.base.verb,))
    if not any("--preregistered" in parameter.opts for parameter in verb.params):
        expected = "a verb of this version of probe whose runs record their spec (replay)"
        raise InputError(f"{spec.path} base.verb", expected=expected, found=repr(spec.base.verb))
    for key, options in option_tables(spec):
        _check_names(spec, key, verb, options)
    for condition in spec.conditions:
        resolved_options(spec, condition)
    for pool, job in zip(spec.pools, pool_jobs(spec, Path("out")), strict=True):
        where = f"pools.{pool.name}"
        generate = _find(spec, where, ("pool", "generate"))
        _check_names(spec, where, generate, pool.options)
        _parse(spec, where, generate, job.args[2:])
    return spec


def resolved_options(spec: Spec, condition: Condition) -> dict[str, Any]:
    """{option: value} of the verb under a condition, defaults included, under the verb's parameter names.

    Settings of the loss that the verb takes through `--condition` alone are added as they are.
    """
    verb = _find(spec, "base.verb", (spec.base.verb,))
    known, options = _names(verb), spec.options(condition)
    arms = ("--arm", ",".join(spec.arms))
    own = flags({name: value for name, value in options.items() if name in known})
    rest = {name: value for name, value in options.items() if name not in known}
    return _parse(spec, f"conditions.{condition.name}", verb, [*arms, *own]) | rest


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


def _check_names(spec: Spec, key: str, command: click.Command, options: Mapping[str, Option]) -> None:
    known = _names(command)
    if "condition" in known:
        known |= {*ONE_PASS}
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            raise InputError(
                f"{spec.path} {key}.{name}",
                expected=f"an option of probe {command.name}",
                found="none of that name",
                fix=f"did you mean {close[0]}?" if close else "see its --help; write _ for -",
            )


def _parse(spec: Spec, key: str, command: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    try:
        with command.make_context(command.name, list(arguments)) as context:
            return dict(context.params)
    except click.UsageError as error:
        where = f"{spec.path} {key}"
        raise InputError(where, expected=f"options of probe {command.name}", found=error.format_message()) from error
