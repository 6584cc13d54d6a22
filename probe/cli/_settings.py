"""Settings on the command line: options generated from settings, --preset, --set and --config.

    @click.command(cls=SettingsCommand)
    @settings_options("replay", "steps", "intervention.arms: --arm")
    @click.pass_context
    def replay(ctx, ...): config = configured(ctx, "replay", out)

An option of a setting is shorthand for `--set KEY=VALUE`; the field defines its type, meaning and default.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource

from probe.cli._frame import AnyFunction, known_pools, one_of, several_of
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
# {flag of the seeds' commands: its equivalent here}
SEED_FLAGS = {
    "--loss-mode": "--set objective.loss_type=grpo (or nll)",
    "--base-only": "--replay-dirs base (probe pool generate --no-hint samples one)",
    "--no-scale-rewards": "--set objective.scale_rewards=none",
    "--kl-beta": "--set objective.beta=VALUE --set objective.reference=base",
    "--num-generations": "--set rollouts.group=NUMBER in a training, --per-pool NUMBER in a replay",
}


class SettingOption(click.Option):
    """An option for `configured`, which is not passed to the command as a parameter.

    Args:
        key: the setting, or the option's name.
    """

    def __init__(self, *args: Any, key: str, **kwargs: Any) -> None:
        super().__init__(*args, expose_value=False, **kwargs)
        self.key = key

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> tuple[Any, list[str]]:
        """Store a value given on the command line."""
        value, args = super().handle_parse_result(ctx, opts, args)
        if ctx.get_parameter_source(str(self.name)) is ParameterSource.COMMANDLINE:
            ctx.meta.setdefault(__name__, {})[self.key] = value
        return value, args


class SettingsCommand(click.Command):
    """A verb with settings; the error for an unknown option names the matching setting."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; for an unknown option, raise an error with the matching setting."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            leaf = error.option_name.lstrip("-").replace("-", "_")
            # check and extract use the settings of a replay.
            configs = [CONFIGS[verb] for verb in CONFIGS if verb == ctx.info_name] or [CONFIGS["replay"]]
            keys = (f"--set {key}=VALUE" for key in keys_of(configs[0]) if key.rpartition(".")[2] == leaf)
            if (known := next(keys, SEED_FLAGS.get(error.option_name))) is None:
                raise
            raise click.UsageError(f"{error.message} Say {known}", ctx) from error


def settings_options(
    verb: Verb, *keys: str, has_config: bool = False, unset: Sequence[str] = ()
) -> Callable[[AnyFunction], AnyFunction]:
    """Add options of some settings, then `--preset`, `--set` and, with `has_config`, `--config`.

    Args:
        verb: the verb of the settings; its preset has their defaults.
        keys: `KEY`, for an option named after the last part of the key, or `KEY: --OPTION`.
        has_config: whether `--config` can repeat a run of this verb.
        unset: keys without which the command does something else, so that it does not use the preset's value.
    """
    usual = flat(asdict(configure(verb))) | dict.fromkeys(unset)
    options = [_option(verb, usual, *(part.strip() for part in key.partition(":")[::2])) for key in keys]
    text = f"{', '.join(preset_names())}, or a .toml file of your own. Default: {DEFAULT_PRESET[verb]}."
    general: list[tuple[str, dict[str, Any]]] = [(PRESET, {"shell_complete": one_of(preset_names()), "help": text})]
    text = "Any setting, as objective.beta=0.01; repeatable. All of them: probe settings."
    general.append((SET, {"multiple": True, "metavar": "TABLE.KEY=VALUE", "help": text}))
    if has_config:
        text = "Start from the config.json of a run, and not from a preset."
        general.append((CONFIG, {"type": click.Path(path_type=Path), "help": text}))
    options += [click.option(name, cls=SettingOption, key=name, **kind) for name, kind in general]
    return lambda function: reduce(lambda decorated, option: option(decorated), reversed(options), function)


def given_settings(ctx: click.Context) -> dict[str, Any]:
    """Return {key: value} of the settings given as options, without `--preset`, `--set` and `--config`."""
    return {key: value for key, value in ctx.meta.get(__name__, {}).items() if key in KEYS}


def given_keys(ctx: click.Context) -> set[str]:
    """Return the keys of all settings given as options or with `--set`."""
    texts = ctx.meta.get(__name__, {}).get(SET, ())
    return {*given_settings(ctx), *(key for text in texts for key in flat(parse_setting(text)))}


def configured(
    ctx: click.Context, verb: Verb, out: Path | None = None, *, start: Mapping[str, Any] | None = None
) -> Any:
    """Return the settings of a run, an instance of its verb's class, from the options of a command.

    Args:
        verb: the verb of the settings.
        out: root folder to resolve the name of a direction file; None keeps the name.
        start: settings that replace a preset; `--config` overrides them.

    Raises:
        InputError: as `configure`; `--config` with `--preset`, or from a run of another verb; a missing direction file,
            or pairs in addition to one.
    """
    said, options = ctx.meta.get(__name__, {}), given_settings(ctx)
    where, settings = said.get(CONFIG, "settings"), said.get(SET, ())
    if CONFIG in said:
        if PRESET in said:
            raise InputError(PRESET, expected="none with --config", found=repr(said[PRESET]))
        start = dict(_stored(verb, said[CONFIG]))
        if options or settings:
            start["preregistered"] = None  # a run with changed settings is not the preregistered one
    config = configure(verb, preset=said.get(PRESET), start=start, where=where, settings=settings, options=options)
    intervention, pairs = getattr(config, "intervention", None), options.get("intervention.extraction.pairs")
    if out is None or intervention is None or intervention.v_hack is None:
        return config
    if pairs is not None:
        raise InputError("--pairs", expected="none with --v-hack, a file that holds its pairs", found=repr(pairs))
    return with_direction_file(config, out)


def say_defaults(ctx: click.Context, config: Any, say: Callable[[str], None]) -> None:
    """Report the options that the preset decided, with their values.

    Args:
        config: the settings of the command.
    """
    said, given = ctx.meta.get(__name__, {}), given_keys(ctx)
    if CONFIG in said:
        return
    if getattr(config, "intervention", None) is not None and config.intervention.v_hack is not None:
        given.add("intervention.extraction.pairs")  # a direction file has its own pairs
    chosen = []
    for option in ctx.command.params:
        key = getattr(option, "key", PRESET)
        if key in KEYS and key not in given and (words := _as_option(option, flat(asdict(config)).get(key))):
            chosen.append(words)
    if chosen:
        preset = said.get(PRESET, DEFAULT_PRESET[config.verb])
        say(f"defaults (--preset {preset}): {' '.join(chosen)}")


def _option(verb: Verb, usual: Mapping[str, Any], key: str, flag: str) -> Callable[[AnyFunction], AnyFunction]:
    """Return the option of a setting; `usual` has the defaults of all settings."""
    entry = field_of(CONFIGS[verb], key)
    flag = flag or f"--{key.rpartition('.')[2].replace('_', '-')}"
    hint: Any = entry.annotation
    if NoneType in get_args(hint):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    meaning = entry.description or key
    text = f"{meaning}{'' if meaning.endswith('.') else '.'} Default: {_default_text(usual.get(key))}."
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
    shown = {"help": text[0].upper() + text[1:], "shell_complete": COMPLETE.get(key)}
    return click.option(flag, cls=SettingOption, key=key, **shown, **kind)


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
    """Format an option with its value as typed on the command line; "" for an empty value."""
    if isinstance(value, bool):
        words = option.opts if value else option.secondary_opts
        return words[0] if words else ""
    if value is None or value in ((), "auto"):
        return ""
    return f"{option.opts[0]} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def _stored(verb: Verb, path: Path) -> Mapping[str, Any]:
    """Return the settings in the config.json of a run."""
    config = read_json(path)
    settings = config.get("settings", {}) if isinstance(config, dict) else {}
    if settings.get("verb") != verb:
        actual = f"a run of probe {settings['verb']}" if "verb" in settings else "none"
        raise InputError(path, expected=f"the config.json of a run of probe {verb}", found=actual)
    return settings
