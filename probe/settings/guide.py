"""The guide of a checkout: where it is, and what its glossary says. The installed package is without it."""

import re
from functools import cache
from pathlib import Path

SPEC = Path(__file__).parents[2] / "spec"
GUIDE = SPEC / "guide"
_ENTRY = re.compile(r"^- \*\*(.+?)\*\*: (.+)$", re.M)
_MARKUP = re.compile(r" \(\[[^]]+\]\([^)]+\)\)|[`*]")  # links in brackets, and signs of Markdown


@cache
def terms() -> dict[str, str]:
    """{term: its meaning in plain text} of the glossary; empty where there is no guide."""
    page = GUIDE / "glossary.md"
    text = page.read_text(encoding="utf-8").replace("\n  ", " ") if page.is_file() else ""
    return {term: _MARKUP.sub("", meaning) for term, meaning in _ENTRY.findall(text)}
