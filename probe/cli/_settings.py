"""Settings on the command line: options generated from settings, --preset, --set and --config.

    @verb()
    @settings_options("replay", "steps", "intervention.arms: --arm")
    def replay(out, **settings): config = configured("replay", settings, out)

An option of a setting is shorthand for `--set KEY=VALUE`; the field defines its type, meaning and default. The command
gets its value as the parameter KEY with __ for a dot, None where it was not given.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import reduce, wraps
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click

from probe.cli._frame import AnyFunction, Text, answer, json_option, out_option, plain, say
from probe.settings.loss import LossCondition
from probe.settings.presets import DEFAULT_PRESET, configure, parse_setting, preset_names, setting_text
from probe.settings.verbs import CONFIGS, KEYS, StepConfig, with_direction_file
from probe.settings.words import Verb
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.base.tables import field_of, flat, keys_of

# Options of several verbs.
MODEL = ("model.name: --model", "model.template", "model.device")
PAIRS = tuple(f"intervention.extraction.{key}" for key in ("pairs", "pairs_map", "k"))
Given = Mapping[str, Any]  # the parameters of the options of settings, and `preset`, `sets` and `config`
# {flag of the seeds' commands: its equivalent here}
SEED_FLAGS = {
    "--loss-mode": "--set objective.loss_type=grpo (or nll)",
    "--base-only": "--replay-dirs base (probe pool generate --no-hint samples one)",
    "--no-scale-rewards": "--set objective.scale_rewards=none",
    "--kl-beta": "--set objective.beta=VALUE --set objective.reference=base",
    "--num-generations": "--set rollouts.group=NUMBER in a training, --per-pool NUMBER in a replay",
}


class SettingsCommand(click.Command):
    """A verb with settings; its help keeps every example on one line, and an unknown option names its setting."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help; click leaves a paragraph after `\\b` as it is."""
        text = re.sub(r"(Examples?:)\s+probe ", r"\1\n\n  probe ", inspect.cleandoc(self.help or ""))
        self.help = re.sub(r"(?m)^  probe ", "\b\n  probe ", text)
        super().format_help_text(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; for an unknown option, raise an error with the matching setting."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            leaf = error.option_name.lstrip("-").replace("-", "_")
            kind = next((CONFIGS[verb] for verb in CONFIGS if verb == ctx.info_name), CONFIGS["replay"])
            keys = (f"--set {key}=VALUE" for key in keys_of(kind) if key.rpartition(".")[2] == leaf)
            if (said := next(keys, SEED_FLAGS.get(error.option_name))) is None:
                raise
            raise click.UsageError(f"{error.message} Say {said}", ctx) from error


def verb(name: str | None = None, *, has_out: bool = True) -> Callable[[Callable[..., Text]], click.Command]:
    """Make a command of a generator that yields its text and returns the object that `--json` prints.

    Its last options are `--out` -> `out: Path` (with `has_out`) and `--json`.
    """

    def make(function: Callable[..., Text]) -> click.Command:
        @wraps(function)
        def answering(as_json: bool, **given: Any) -> None:
            if code := answer(function(**given), as_json):
                click.get_current_context().exit(code)

        command = click.command(name, cls=SettingsCommand)(answering)
        last = click.command()(out_option(json_option(lambda: None)))
        command.params += last.params if has_out else last.params[1:]
        return command

    return make


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
    preset = f"{', '.join(preset_names())}, or a .toml file of your own. Default: {DEFAULT_PRESET[verb]}."
    text = "Any setting, as objective.beta=0.01; repeatable. All of them: probe settings."
    options += [
        click.option("--preset", help=preset),
        click.option("--set", "sets", multiple=True, metavar="TABLE.KEY=VALUE", help=text),
    ]
    if has_config:
        text = "Start from the config.json of a run, and not from a preset."
        options.append(click.option("--config", type=click.Path(path_type=Path), help=text))
    return lambda function: reduce(lambda decorated, option: option(decorated), reversed(options), function)


def given_settings(given: Given) -> dict[str, Any]:
    """Return {key: value} of the settings given as options, without `--preset`, `--set` and `--config`."""
    keys = {key: given.get(key.replace(".", "__")) for key in KEYS}
    return {key: value for key, value in keys.items() if value is not None}


def all_settings(given: Given) -> dict[str, Any]:
    """Return {key: value} of all settings given as options or with `--set`."""
    texts = [flat(parse_setting(text)) for text in given["sets"]]
    return {key: value for table in (*texts, given_settings(given)) for key, value in table.items()}


def given_keys(given: Given) -> set[str]:
    """Return the keys of all settings given as options or with `--set`."""
    return {*all_settings(given)}


def configured(verb: Verb, given: Given, out: Path | None = None, *, start: Mapping[str, Any] | None = None) -> Any:
    """Return the settings of a run, an instance of its verb's class, from the options of a command.

    Args:
        verb: the verb of the settings.
        given: the parameters of the command.
        out: root folder to resolve the name of a direction file; None keeps the name.
        start: settings that replace a preset; `--config` overrides them.

    Raises:
        InputError: as `configure`; `--config` with `--preset`, or from a run of another verb; a missing direction file,
            or pairs in addition to one.
    """
    options, where = given_settings(given), given.get("config")
    if where is not None:
        if given["preset"] is not None:
            raise InputError("--preset", expected="none with --config", found=repr(given["preset"]))
        start = _stored(verb, where)
        if options or given["sets"]:
            start = {**start, "preregistered": None}  # a run with changed settings is not the preregistered one
    origin: dict[str, Any] = {"preset": given["preset"], "start": start, "where": where or "settings"}
    config = configure(verb, **origin, settings=given["sets"], options=options)
    pairs = options.get("intervention.extraction.pairs")
    if out is None or not isinstance(config, StepConfig) or config.intervention.v_hack is None:
        return config
    if pairs is not None:
        raise InputError("--pairs", expected="none with --v-hack, a file that holds its pairs", found=repr(pairs))
    return with_direction_file(config, out)


def say_defaults(given: Given, config: Any) -> None:
    """Print, on stderr, the settings with an option of the command that the preset decided, as `--set` takes them."""
    if given.get("config") is not None:
        return
    values, said = flat(asdict(config)), given_keys(given)
    if values.get("intervention.v_hack") is not None:
        said.add("intervention.extraction.pairs")  # a direction file has its own pairs
    keys = [name.replace("__", ".") for name in given]
    chosen = {key: values[key] for key in keys if key in values and key not in said}
    if texts := [f"{key}={setting_text(value)}" for key, value in chosen.items() if value not in (None, (), "auto")]:
        say(f"defaults (--preset {given['preset'] or DEFAULT_PRESET[config.verb]}): {' '.join(texts)}")


def _option(verb: Verb, usual: Mapping[str, Any], key: str, flag: str) -> Callable[[AnyFunction], AnyFunction]:
    """Return the option of a setting; `usual` has the defaults of all settings."""
    entry = field_of(CONFIGS[verb], key)
    flag = flag or f"--{key.rpartition('.')[2].replace('_', '-')}"
    hint: Any = entry.annotation
    if NoneType in get_args(hint):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    meaning = entry.description or key
    text = f"{meaning}{'' if meaning.endswith('.') else '.'} Default: {plain(usual.get(key), 'none')}."
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
    return click.option(flag, key.replace(".", "__"), help=text[0].upper() + text[1:], **kind)


def _names(_ctx: click.Context, _option: click.Parameter, value: str | None) -> Sequence[str] | None:
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


def _conditions(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> Sequence[Any] | None:
    return tuple(asdict(LossCondition.parse(text)) for text in texts) or None


def _stored(verb: Verb, path: Path) -> Mapping[str, Any]:
    """Return the settings in the config.json of a run."""
    config = read_json(path)
    settings = config.get("settings", {}) if isinstance(config, dict) else {}
    if settings.get("verb") != verb:
        actual = f"a run of probe {settings['verb']}" if "verb" in settings else "none"
        raise InputError(path, expected=f"the config.json of a run of probe {verb}", found=actual)
    return settings
