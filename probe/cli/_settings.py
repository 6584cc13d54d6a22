"""Settings on the command line: --preset, --set and --config, the same for every verb, beside a few flags.

    @click.command(cls=SettingsCommand)
    @settings_options
    @config_option
    def replay(ctx, ...): config = run_config(ctx, "replay", FLAGS, out)

A flag is a short name of one setting: FLAGS says of which. What has no flag is reached by `--set TABLE.KEY=VALUE`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from extraction.words import PAIR_GRADIENTS
from probe.cli.completion import one_of
from probe.records.run import settings_of
from probe.settings.presets import DEFAULT_PRESET, configure, parse_setting, preset_names
from probe.settings.run import KEYS, TABLES_OF, RunConfig
from probe.settings.words import Verb
from replay_pools.errors import InputError, unknown_name
from replay_pools.storage.files import by_name, read_json
from replay_pools.storage.tables import flat

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
# The verb of a command's settings; of any other command (extract) it is replay.
VERB_OF: dict[str, Verb] = {"train": "train", "eval": "eval", "generate": "generate"}


class SettingsCommand(click.Command):
    """A verb with settings: an option that it lacks but a setting that has its name says so.

    Args:
        groups: {title: options} of its help, in this order; None = one list.
    """

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click, but in groups where there are any."""
        if self.groups is None:
            super().format_options(ctx, formatter)
            return
        options = {option.opts[0]: option for option in self.get_params(ctx)}
        for title, words in self.groups.items():
            with formatter.section(title):
                records = [options[word].get_help_record(ctx) for word in words]
                formatter.write_dl([record for record in records if record is not None])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click, but for the hint."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            leaf = error.option_name.lstrip("-").replace("-", "_")
            verb = VERB_OF.get(str(ctx.info_name), "replay")
            tables = {name for name, verbs in TABLES_OF.items() if verb not in verbs}  # those of other verbs
            keys = []
            for key in KEYS:
                table, _, _ = key.partition(".")
                if key.rpartition(".")[2] == leaf and table not in tables:
                    keys.append(key)
            if not keys:
                raise
            fix = f"say --set {keys[0]}=VALUE"
            raise InputError(error.option_name, expected="a flag", found="a setting without one", fix=fix) from error


def config_option(function: AnyFunction) -> AnyFunction:
    """`--config` -> `config_file`."""
    kind = click.Path(path_type=Path)
    return click.option("--config", "config_file", type=kind, help="config.json of a run to repeat.")(function)


def settings_options(function: AnyFunction) -> AnyFunction:
    """`--preset` and `--set` -> `preset`, `settings`."""
    function = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="TABLE.KEY=VALUE",
        help="Any setting, as objective.beta=0.01; repeatable. All of them: python -m probe.settings.describe.",
    )(function)
    return click.option(
        "--preset",
        shell_complete=one_of(preset_names()),
        help=f"{', '.join(preset_names())}, or a .toml file of your own. Default: the verb's.",
    )(function)


def run_config(ctx: click.Context, verb: Verb, flags: Mapping[str, str], out: Path) -> RunConfig:
    """The settings of a run, from the options of a command.

    Args:
        flags: {parameter of the command: key of the setting that it stands for}; one that is None was not given.
        out: where a direction file that is given by its name is looked up.

    Raises:
        InputError: as `configure`; `--config` beside `--preset`, or not of a run of this verb.
    """
    options, settings = given_flags(ctx, flags), ctx.params["settings"]
    if ctx.params.get("config_file") is None:
        config = configure(verb, preset=ctx.params["preset"], settings=settings, options=options)
    else:
        if ctx.params["preset"] is not None:
            raise InputError("--preset", expected="none beside --config", found=repr(ctx.params["preset"]))
        start = dict(_stored(verb, ctx.params["config_file"]))
        if options or settings:
            start["preregistered"] = None  # a run with other settings is not the one that a spec announced
        config = configure(verb, start=start, where=ctx.params["config_file"], settings=settings, options=options)
    if config.intervention.v_hack is None:
        return config
    if _given(ctx, "pairs"):
        actual = repr(ctx.params["pairs"])
        raise InputError("--pairs", expected="none beside --v-hack, whose file holds its pairs", found=actual)
    # A preset or a spec, whose runs come by --config, may name a file of OUT/directions as the flag does.
    v_hack = resolve_directions(Path(config.intervention.v_hack), out)
    return replace(config, intervention=replace(config.intervention, v_hack=str(v_hack)))


def resolve_directions(file: Path, out: Path) -> Path:
    """A direction file: a path, or else the name of one in `out`/directions.

    Raises:
        InputError: there is none; those in `out`/directions are listed.
    """
    folder = out / "directions"
    path = by_name(file, folder / f"{file.name}.safetensors")
    if path.is_file():
        return path
    expected = f"a file of probe extract, or the name of one in {folder}"
    raise unknown_name(
        f"directions {file}", file.name, direction_names(out), expected=expected, fix="run probe extract"
    )


def direction_names(out: Path) -> list[str]:
    """The names of the direction files in `out`/directions, sorted."""
    files = (out / "directions").glob("*.safetensors")
    return sorted(path.stem for path in files if not path.name.endswith(PAIR_GRADIENTS))


def given_flags(ctx: click.Context, flags: Mapping[str, str]) -> dict[str, Any]:
    """{key of a setting: value} of the flags that were given."""
    return {
        key: ctx.params[name]
        for name, key in flags.items()
        if _given(ctx, name) or ctx.params[name] not in (None, (), [])
    }


def say_defaults(ctx: click.Context, config: RunConfig, flags: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Say what was not given and so is as the preset has it, as the options that would change it.

    Args:
        config: the settings that the command made of its options.
        flags: as in `run_config`.
    """
    if ctx.params.get("config_file") is not None:
        return
    given = set(given_flags(ctx, flags))
    for text in ctx.params["settings"]:
        given |= flat(parse_setting(text)).keys()
    if config.intervention.v_hack is not None:  # the file has pairs of its own
        given.add("intervention.extraction.pairs")
    options = {option.name: option for option in ctx.command.params}
    chosen = []
    for name, key in flags.items():
        if key not in given and (words := _as_option(options[name], attrgetter(key)(config))):
            chosen.append(words)
    if chosen:
        preset = ctx.params["preset"] or DEFAULT_PRESET[config.verb]
        say(f"by default (--preset {preset}): {' '.join(chosen)}; give any to change it")


def _as_option(option: click.Parameter, value: Any) -> str:
    """An option with a value, as one would type it; "" for a value that chooses nothing."""
    if isinstance(value, bool):
        words = option.opts if value else option.secondary_opts
        return words[0] if words else ""
    if value is None or value in ((), "auto"):
        return ""
    return f"{option.opts[0]} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def _stored(verb: Verb, path: Path) -> Mapping[str, Any]:
    """The settings that a run's config.json holds."""
    config = read_json(path)
    settings = settings_of(config) if isinstance(config, dict) else {}
    if settings.get("verb") != verb:
        actual = f"that of probe {settings['verb']}" if "verb" in settings else "none"
        raise InputError(path, expected=f"the config.json of a run of probe {verb}", found=actual)
    return settings


def _given(ctx: click.Context, name: str) -> bool:
    return name in ctx.params and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
