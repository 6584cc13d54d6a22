"""Settings on the command line: options generated from settings, --preset, --set and --config.

    @click.command(cls=SettingsCommand)
    @settings_options("replay", "steps", "intervention.arms: --arm")
    @click.pass_context
    def replay(ctx, ...): config = configured(ctx, "replay", out)

An option of a setting is short for `--set KEY=VALUE`; type, help and default come from the field.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource

from probe.cli._frame import AnyFunction, known_pools, one_of, several_of
from probe.records.run import settings_of
from probe.settings.arms import ARMS
from probe.settings.loss import LossCondition
from probe.settings.presets import DEFAULT_PRESET, configure, parse_setting, preset_names
from probe.settings.run import CONFIGS, KEYS, with_direction_file
from probe.settings.words import Verb
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.base.tables import field_of, flat, keys_of

COMPLETE = {
    "source.replay_dirs": several_of(known_pools),
    "intervention.arms": several_of(lambda _ctx: [*ARMS]),
}
PRESET, SET, CONFIG = "--preset", "--set", "--config"

# {flag of the author's earlier scripts: its equivalent here}
SEED_FLAGS = {
    "--loss-mode": "--set objective.loss_type=grpo (or nll)",
    "--base-only": "--replay-dirs base (probe pool generate --no-hint samples one)",
    "--no-scale-rewards": "--set objective.scale_rewards=none",
    "--kl-beta": "--set objective.beta=VALUE --set objective.reference=base",
    "--num-generations": "--set rollouts.group=NUMBER in a training, --per-pool NUMBER in a replay",
}


class SettingOption(click.Option):
    """An option that `configured` reads; it is no parameter of the command.

    Args:
        key: the setting, or the option's name.
    """

    def __init__(self, *args: Any, key: str, **kwargs: Any) -> None:
        super().__init__(*args, expose_value=False, **kwargs)
        self.key = key

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> tuple[Any, list[str]]:
        """Parse as click does, and keep a given value."""
        value, args = super().handle_parse_result(ctx, opts, args)
        if ctx.get_parameter_source(str(self.name)) is ParameterSource.COMMANDLINE:
            ctx.meta.setdefault(__name__, {})[self.key] = value
        return value, args


class SettingsCommand(click.Command):
    """A verb with settings. The error for an unknown option names the setting of that name.

    Args:
        common: options that the help lists first.
    """

    def __init__(self, *args: Any, common: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.common = common

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format as click does, with common options in a first list."""
        records = {option.opts[0]: option.get_help_record(ctx) for option in self.get_params(ctx)}
        common = [records.pop(word) for word in self.common]
        for title, rows in (("Common options", common), ("Other options" if common else "Options", records.values())):
            if shown := [row for row in rows if row is not None]:
                with formatter.section(title):
                    formatter.write_dl(shown)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; the error for an unknown option has a hint."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            leaf = error.option_name.lstrip("-").replace("-", "_")
            keys = [key for key in keys_of(CONFIGS[_verb_of(ctx)]) if key.rpartition(".")[2] == leaf]
            known = f"--set {keys[0]}=VALUE" if keys else SEED_FLAGS.get(error.option_name)
            if known is None:
                raise
            fix = f"use {known}"
            raise InputError(error.option_name, expected="an option", found="a setting without one", fix=fix) from error


def settings_options(verb: Verb, *keys: str, has_config: bool = False) -> Callable[[AnyFunction], AnyFunction]:
    """Add options of some settings, then `--preset`, `--set` and, with `has_config`, `--config`.

    Args:
        verb: the verb of the settings; its preset has the defaults.
        keys: `KEY`, for an option named by the last part of the key, or `KEY: --OPTION`.
        has_config: a run of this verb can be repeated.
    """
    usual = configure(verb)
    options = [_option(verb, usual, *(part.strip() for part in key.partition(":")[::2])) for key in keys]
    names = ", ".join(preset_names())
    text = f"{names}, or a .toml file. Default: {DEFAULT_PRESET[verb]}."
    options.append(
        click.option(PRESET, cls=SettingOption, key=PRESET, shell_complete=one_of(preset_names()), help=text)
    )
    text = "Any setting, such as objective.beta=0.01; repeatable. `probe settings` lists all."
    options.append(click.option(SET, cls=SettingOption, key=SET, multiple=True, metavar="TABLE.KEY=VALUE", help=text))
    if has_config:
        kind, text = click.Path(path_type=Path), "Start from the config.json of a run instead of a preset."
        options.append(click.option(CONFIG, cls=SettingOption, key=CONFIG, type=kind, help=text))

    def decorate(function: AnyFunction) -> AnyFunction:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def given_settings(ctx: click.Context) -> dict[str, Any]:
    """Return {key: value} of settings given by options, without `--preset`, `--set` and `--config`."""
    return {key: value for key, value in ctx.meta.get(__name__, {}).items() if key in KEYS}


def given_keys(ctx: click.Context) -> set[str]:
    """Return the keys of all settings given by options or `--set`."""
    texts = ctx.meta.get(__name__, {}).get(SET, ())
    return {*given_settings(ctx), *(key for text in texts for key in flat(parse_setting(text)))}


def configured(
    ctx: click.Context, verb: Verb, out: Path | None = None, *, start: Mapping[str, Any] | None = None
) -> Any:
    """Build the config of a verb from the options of a command.

    Args:
        verb: the verb of the settings.
        out: root folder to look up the name of a direction file; None = keep the name.
        start: settings in place of a preset; `--config` replaces them.

    Raises:
        InputError: as in `configure`; `--config` with `--preset`, or of another verb; no such direction file, or pairs
            as well as a direction file.
    """
    said, options = ctx.meta.get(__name__, {}), given_settings(ctx)
    where, settings = said.get(CONFIG, "settings"), said.get(SET, ())
    if CONFIG in said:
        if PRESET in said:
            raise InputError(PRESET, expected="none with --config", found=repr(said[PRESET]))
        start = dict(_stored(verb, said[CONFIG]))
        if options or settings:
            start["preregistered"] = None  # with other settings it is no longer the announced run
    config = configure(verb, preset=said.get(PRESET), start=start, where=where, settings=settings, options=options)
    intervention, pairs = getattr(config, "intervention", None), options.get("intervention.extraction.pairs")
    if out is None or intervention is None or intervention.v_hack is None:
        return config
    if pairs is not None:
        raise InputError("--pairs", expected="none with --v-hack, as its file has pairs", found=repr(pairs))
    return with_direction_file(config, out)


def say_defaults(ctx: click.Context, config: Any, say: Callable[[str], None]) -> None:
    """Report the preset's values of options that were not given, as options.

    Args:
        config: the settings of the command.
    """
    said, given = ctx.meta.get(__name__, {}), given_keys(ctx)
    if CONFIG in said:
        return
    if getattr(config, "intervention", None) is not None and config.intervention.v_hack is not None:
        given.add("intervention.extraction.pairs")  # the direction file has pairs
    chosen = []
    for option in ctx.command.params:
        key = getattr(option, "key", PRESET)
        if key in KEYS and key not in given and (words := _as_option(option, flat(asdict(config)).get(key))):
            chosen.append(words)
    if chosen:
        preset = said.get(PRESET, DEFAULT_PRESET[config.verb])
        say(f"defaults (--preset {preset}): {' '.join(chosen)}")


def _option(verb: Verb, usual: Any, key: str, flag: str) -> Callable[[AnyFunction], AnyFunction]:
    """Make the option of a setting."""
    entry = field_of(CONFIGS[verb], key)
    leaf = key.rpartition(".")[2].replace("_", "-")
    flag = flag or f"--{leaf}"
    hint = entry.annotation
    if NoneType in get_args(hint):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    value = flat(asdict(usual)).get(key)  # None if the table is unset
    text = f"{(entry.description or key).rstrip('.')}. Default: {_default_text(value)}."
    kind: dict[str, Any] = {"type": hint if hint in (int, float) else str}
    if hint is bool:
        flag, kind = f"{flag}/--no-{flag.lstrip('-')}", {"default": None}
    elif get_origin(hint) is Literal:
        kind = {"type": click.Choice(get_args(hint))}
    elif key == "conditions":
        kind = {"multiple": True, "callback": _conditions, "metavar": "NAME[:KEY=VALUE,...]"}
        text = "Loss variant: measure every arm under this change of the objective; repeatable. Default: no change."
    elif get_origin(hint) is tuple:
        kind = {"callback": _names, "metavar": "NAME,..."}
    if key in COMPLETE:
        kind["shell_complete"] = COMPLETE[key]
    return click.option(flag, cls=SettingOption, key=key, help=text[0].upper() + text[1:], **kind)


def _names(_ctx: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


def _conditions(_ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    conditions = [LossCondition.parse(text) for text in texts]
    return tuple({"name": condition.name, "changes": condition.changes} for condition in conditions)


def _default_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _as_option(option: click.Parameter, value: Any) -> str:
    """Format an option with its value as typed; "" for an empty value."""
    if isinstance(value, bool):
        words = option.opts if value else option.secondary_opts
        return words[0] if words else ""
    if value is None or value in ((), "auto"):
        return ""
    return f"{option.opts[0]} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def _verb_of(ctx: click.Context) -> Verb:
    """Return the verb of a command's settings; replay for other commands (check, extract)."""
    for verb in CONFIGS:
        if verb == ctx.info_name:
            return verb
    return "replay"


def _stored(verb: Verb, path: Path) -> Mapping[str, Any]:
    """Return the settings in a run's config.json."""
    config = read_json(path)
    settings = settings_of(config) if isinstance(config, dict) else {}
    if settings.get("verb") != verb:
        actual = f"one of probe {settings['verb']}" if "verb" in settings else "none"
        raise InputError(path, expected=f"the config.json of a run of probe {verb}", found=actual)
    return settings
