"""What a verb prints, on a terminal: the same words with colours, and tables that fit its width, by rich."""

import re
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.highlighter import RegexHighlighter
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from probe.settings.words import TONES

THEME = Theme(
    {
        "good": "bold green",
        "likely": "bold green",
        "bad": "bold red",
        "open": "bold yellow",
        "empty": "dim",
        "command": "cyan",
        "picture": "blue",
        "head": "bold",
    }
)


def _words(tone: str) -> str:
    names = "|".join(map(re.escape, sorted(TONES[tone], key=len, reverse=True)))
    return rf"(?<![\w-])(?P<{tone}>{names})(?![\w-])"


class Words(RegexHighlighter):
    """Words of verdicts by their tone, warnings, heads, pictures of intervals, and commands to copy."""

    highlights = [  # noqa: RUF012 (as rich has it)
        *map(_words, TONES),
        r"(?P<bad>probe: error:|FAILED|STOPPED)",
        r"(?P<open>WARNING|CAUTION|[Cc]aution:)",
        r"(?m)^(?P<head>VERDICT|OUTCOME|DECISION|NEXT|PROMPT|COMPLETION)\b",
        r"(?P<picture>[.=o|<>]{33})",
        r"(?m)^ *(?P<command>probe [a-z].*)$",
    ]


def painted(text: str, *, err: bool = False) -> str:
    """A text with the escapes of its colours; without any where the terminal has none, or NO_COLOR is set."""
    return _shown(Words()(Text(text)), err)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A table as wide as it must be, and no wider than the terminal: cells break into lines."""
    shown = Table(box=None, header_style="head", pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(header):
        shown.add_column(Text(name), justify="left" if place < left else "right", overflow="fold")
    highlight = Words()
    for row in rows:
        shown.add_row(*(highlight(Text(cell)) for cell in row))
    return _shown(shown, False).rstrip("\n")


def _shown(what: RenderableType, err: bool) -> str:
    console = Console(stderr=err, theme=THEME, highlight=False)
    with console.capture() as captured:
        console.print(what, soft_wrap=isinstance(what, Text), end="" if isinstance(what, Text) else "\n")
    return captured.get()
