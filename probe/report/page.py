"""The HTML document: one self-contained file made from `templates/`, with every text escaped."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from probe.analysis.formatting import short
from probe.analysis.verdict.verdict import MOST_CAVEATS
from probe.report.analyses import slug
from probe.report.drawing import Figure
from probe.report.facts import plural, signed, typeset
from probe.settings.words import TONES
from replay_pools.base.terminal import visible

# Shown with the colours.
MARKS = {"good": "\u2713", "likely": "\u2248", "bad": "\u2715", "open": "?", "empty": "\u2205"}
TONE_OF = {str(word): (tone, MARKS[tone]) for tone, words in TONES.items() for word in words}
OPTIONAL = ("run", "arms", "verdict", "replay", "pushes", "validity", "num_more")  # content that a section may lack


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of the page, with its figures, which are also written as files."""

    title: str
    lead: str  # the section's question and how to read the answer
    html: str
    figures: Sequence[Figure]


def section(title: str, lead: str, template: str, drawings: Sequence[Figure] = (), /, **content: Any) -> Section:
    """Make a section of a template of `templates/`, its content, and all figures in it."""
    return Section(title=title, lead=lead, html=render(template, **content), figures=drawings)


def render(template: str, **content: Any) -> str:
    """Render a template of `templates/`, with HTML and invisible characters escaped."""
    return _environment().get_template(template).render(content)


def page(title: str, summary: str, sections: Sequence[Section]) -> str:
    """Return the HTML document of a report with sections in reading order."""
    style, script = ((files("probe.report") / name).read_text("utf-8") for name in ("page.css", "page.js"))
    # The page shows text by models, so it may run only our script, identified by hash, and load no address.
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    policy = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
    content = {"style": Markup(style), "script": Markup(script), "policy": policy.format(*hashes)}
    return render("page.html", title=title, summary=summary, sections=sections, **content)


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
    environment.globals |= {"most_caveats": MOST_CAVEATS}
    environment.globals |= dict.fromkeys(OPTIONAL)
    environment.filters |= {
        "short": lambda text: short(text, 120),
        "plural": plural,
        "signed": signed,
        "slug": slug,
        "tone": lambda word: TONE_OF.get(word, ("", "")),
        "typeset": typeset,
    }
    return environment


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
