"""Pairs in Markdown, in sections: `path.md#section`, `#section/heading_prefix`, `#section@tag1,tag2`.

    ## SECTION
    ### PAIR_ID
    Tags: a, b-c                                  optional
    #### Prompt                                   likewise #### Hack and #### Clean, each once
    `````text                                     on the next line; five backticks, so that code may use three
    the text, without its last line break
    `````

A heading inside a fence is text. The reference names a section, of its pairs those whose id begins with the prefix, and
of those the ones with all of the tags; a file of one section needs no reference.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay_pools.errors import Faults, InputError
from replay_pools.storage.files import MAX_DOCUMENT, read_plain

FENCE = "`" * 5
PARTS = {"Prompt": "prompt", "Hack": "hack", "Clean": "clean"}
_TAGS = re.compile(r"Tags: ([a-z0-9\-, ]+)")


@dataclass(slots=True)
class _Section:
    """A pair as it is being read."""

    where: str
    pair_id: str
    tags: list[str] | None = None
    texts: dict[str, str] = field(default_factory=dict)  # {field of a pair: its text}


def read_markdown(path: Path, selector: str, faults: Faults) -> list[tuple[str, dict[str, Any]]]:
    """(place, row) of every selected pair; a row holds prompt, hack, clean, pair_id, problem_id, flavour.

    Args:
        path: of the file.
        selector: what the reference says behind `#`; '' for all of a file of one section.
        faults: takes what is wrong with pairs of the selected section.

    Raises:
        InputError: no such section, or no pair that the reference selects.
    """
    try:
        text = read_plain(path, MAX_DOCUMENT).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(path, expected="text in UTF-8", found=str(error)) from error
    by_section = _pairs(text, path, faults)
    section, _, tag_text = selector.partition("@")
    section, _, prefix = section.partition("/")
    tags = {tag.strip() for tag in tag_text.split(",") if tag.strip()}
    if not section and len(by_section) == 1:
        section = next(iter(by_section))
    if section not in by_section:
        names = ", ".join(f"{path}#{name}" for name in by_section) or "a line `## NAME` above its pairs"
        raise InputError(path, expected=names, found=f"#{section}" if section else "no section named")
    rows: list[tuple[str, dict[str, Any]]] = []
    for pair in by_section[section]:
        if pair.pair_id.startswith(prefix) and tags <= {*(pair.tags or ())}:
            for heading, name in PARTS.items():
                if name not in pair.texts:
                    faults.add(pair.where, "markdown", expected=f"a field `#### {heading}`", found="none")
            # The first word of a heading is its family.
            family, underscore, _ = pair.pair_id.partition("_")
            names = {"pair_id": pair.pair_id, "problem_id": pair.pair_id, "flavour": family if underscore else "all"}
            rows.append((pair.where, pair.texts | names))
    if not rows:
        named = [pair.pair_id for pair in by_section[section]]
        known_tags = sorted({tag for pair in by_section[section] for tag in pair.tags or ()})
        expected = f"a prefix of {', '.join(named[:6])}, ... or tags of {', '.join(known_tags[:12])}"
        raise InputError(f"{path}#{selector}", expected=expected, found="no such pair")
    return rows


def _pairs(text: str, path: Path, faults: Faults) -> dict[str, list[_Section]]:
    """{section: its pairs}, read line by line."""
    sections: dict[str, list[_Section]] = {}
    section, pair, part = "", None, ""
    fenced: list[str] | None = None  # the lines since the last opening fence
    opened = ""
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path} line {number}"
        if fenced is not None:
            if line != FENCE:
                fenced.append(line)
                continue
            if pair is not None and part:
                pair.texts[part] = "\n".join(fenced)
            fenced, part = None, ""
        elif line.startswith(FENCE):
            if pair is not None and not part:
                faults.add(
                    where, "markdown", expected="a fence on the line below Prompt, Hack or Clean", found=repr(line)
                )
            fenced, opened = [], where
        elif line.startswith("## "):
            section, pair, part = line.removeprefix("## ").strip(), None, ""
            if section in sections:
                faults.add(where, "markdown", expected="every section once", found=f"{section} twice")
            sections.setdefault(section, [])
        elif line.startswith("### "):
            pair, part = _Section(where, line.removeprefix("### ").strip()), ""
            sections.setdefault(section, []).append(pair)
        elif line.startswith("#### ") and pair is not None:
            heading = line.removeprefix("#### ").strip()
            part = PARTS.get(heading, "")
            if not part:
                faults.add(where, "markdown", expected=f"one of the headings {', '.join(PARTS)}", found=heading)
            elif part in pair.texts:
                faults.add(where, "markdown", expected="every field of a pair once", found=f"{heading} twice")
        elif part and line.strip():
            faults.add(where, "markdown", expected=f"{FENCE}text below the heading of a field", found=repr(line[:40]))
            part = ""
        elif pair is not None and line.startswith("Tags:"):
            match = _TAGS.fullmatch(line)
            if match is None or pair.tags is not None:
                found = "a second line of tags" if match else repr(line[:60])
                faults.add(where, "markdown", expected="one line `Tags: a, b-c` in lower case", found=found)
            else:
                pair.tags = [tag.strip() for tag in match[1].split(",") if tag.strip()]
    if fenced is not None:
        faults.add(opened, "markdown", expected=f"a line {FENCE} that ends the fence", found="the end of the file")
    return sections
