"""The HTML document: one file that loads nothing, made from `templates/`, with every text escaped."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from probe.analysis.formatting import TextTable, short
from probe.report.drawing import Figure
from probe.report.facts import plural, signed
from probe.report.inputs import slug
from replay_pools.screen import visible

MARKS = {  # a word is told by its mark, not by its colour alone
    "PASS": "\u2713",
    "YES": "\u2713",
    "HOLDS": "\u2713",
    **dict.fromkeys(("WORKS", "LOWERS", "FALLS", "KEPT"), "\u2713"),
    "LIKELY": "\u2248",
    "FAIL": "\u2715",
    **dict.fromkeys(("NO", "RISES", "LOST"), "\u2715"),
    "BROKEN": "\u2715",
    "VACUOUS": "\u2205",
    **dict.fromkeys(("INCONCLUSIVE", "UNCLEAR", "UNDERPOWERED", "CONFOUNDED", "UNMEASURED", "NOT SEEN", "OPEN"), "?"),
}
# A minus stands before a number; a hyphen inside a word (`demo-2`) or between numbers is left alone.
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of the page, with the figures and tables that are also written as files."""

    id: str
    title: str
    lead: str  # the question of the section, and how to read the answer
    html: str
    figures: list[Figure] = field(default_factory=list)
    tables: dict[str, list[TextTable]] = field(default_factory=dict)  # by the label of their view; "": of all


def render(template: str, **context: Any) -> str:
    """A template of `templates/`, with every text escaped and its invisible characters as escapes."""
    return _environment().get_template(template).render(context)


def page(title: str, summary: str, sections: Sequence[Section]) -> str:
    """The HTML document of a report, its sections in reading order."""
    style, script = ((files("probe.report") / name).read_text("utf-8") for name in ("page.css", "page.js"))
    # The page shows texts that models wrote: no script may run but ours, known by its hash, and no address be loaded.
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    policy = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
    context = {"style": Markup(style), "script": Markup(script), "policy": policy.format(*hashes)}
    return render("page.html", title=title, summary=summary, sections=sections, **context)


def typeset(text: str) -> str:
    """Plain text with true signs: a minus before a number, plus-minus."""
    return _MINUS.sub("\u2212", text.replace("+-", "\u00b1"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("probe.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    environment.filters |= {
        "breakable": lambda name: Markup("_<wbr>").join(escape(part) for part in name.split("_")),
        # Where a share lies on a line of 150 pixels from -0.5 to 1.5; ends beyond it lie at its ends.
        "place": lambda share: f"{4 + 71 * (min(max(share, -0.5), 1.5) + 0.5):.1f}",
        "short": lambda text: short(text, 120),
        "plural": plural,
        "signed": signed,
        "slug": slug,
        "typeset": typeset,
    }
    environment.globals["marks"] = MARKS
    return environment


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
