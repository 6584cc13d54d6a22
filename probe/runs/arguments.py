"""Errors and lines of the Python functions: where the command line has an option, they name the argument."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from inspect import signature
from typing import Any

from replay_pools.base.errors import InputError, refuse

PAIR = r"(\w+)=([^\s,;)]*[^\s,;:)])"
# {an option in a sentence: the argument of the Python function}
ARGUMENTS = {
    r"--format (\S+)": r'format_name="\1"',
    r"--skip-bad (\w+)": r"skip_bad=\1",
    r"--completion-limit (\w+)": r"limit=\1",
    r"--set ([\w.]+)=([^\s)]+)": r'settings={"\1": \2}',
    r"--set ([\w.]+)": r'settings["\1"]',
    r"--pairs-map (\S+)": r'settings={"intervention.extraction.pairs_map": "\1"}',
    r"--per-pool (\d+)": r'settings={"source.per_pool": \1}',
    r"--per-pool": r'settings["source.per_pool"]',
    r"--(adapter)\b": r'settings["model.\1"]',
    r"--no-gradients\b": "gradients=False",
    r"--(map|pairs|model|steps|name|k|labels|label|detectors|reference)\b": r"\1",
}


@cache  # `probe.check` is one object
def in_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with an argument `say`, whose errors and lines name arguments."""
    say = signature(function).parameters["say"].default

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        tell = options.pop("say", say)
        try:
            result = function(*args, **options, say=lambda text: tell(reworded(text)))
            said = getattr(result, "cautions", ())
            return replace(result, cautions=[*map(reworded, said)]) if said else result
        except InputError as error:
            parts = [
                InputError(reworded(str(part.where)), expected=part.expected, found=part.found, fix=reworded(part.fix))
                for part in error.errors
            ]
        return refuse(parts)

    return called


def reworded(text: str) -> str:
    """Return a sentence with options of the command line as arguments."""
    text = re.sub(rf"--map {PAIR}(,{PAIR})*", _mapping, text)
    for option, argument in ARGUMENTS.items():
        text = re.sub(option, argument, text)
    return text


def _mapping(option: re.Match[str]) -> str:
    pairs = (f'"{target}": "{column}"' for target, column in re.findall(PAIR, option[0]))
    return f"mapping={{{', '.join(pairs)}}}"
