"""The manual and the terms of its glossary."""

import re
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from replay_pools.base.errors import InputError

SHIPPED = "gradient-probe"  # the folder of the manual among the data files of the installed package
_ENTRY = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.M)
_MARKUP = re.compile(r" \(\[[^]]+\]\([^)]+\)\)|[`*]")  # links in brackets, and signs of Markdown


def manual() -> Path:
    """Return the folder spec/ of the checkout, or its copy in the installed package.

    Raises:
        InputError: neither exists.
    """
    folders = [Path(__file__).parents[2] / "spec"]
    for file in distribution("gradient-probe").files or ():
        if file.match(f"{SHIPPED}/guide/*.md"):
            folders.append(Path(str(file.locate())).resolve().parents[1])
            break
    for folder in folders:
        if (folder / "guide").is_dir():
            return folder
    raise InputError(
        "probe docs", expected=f"the manual in {folders[-1]}", found="none", fix="install gradient-probe again"
    )


@cache
def terms() -> dict[str, str]:
    """Return {term: meaning in plain text} of the glossary; empty without a manual."""
    try:
        text = (manual() / "guide" / "glossary.md").read_text(encoding="utf-8")
    except (InputError, OSError):
        return {}
    return {term: _MARKUP.sub("", meaning) for term, meaning in _ENTRY.findall(text.replace("\n  ", " "))}
