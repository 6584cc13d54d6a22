"""The rows of a file of pairs, each with its place: any file that a log may be, or sections of Markdown."""

from pathlib import Path
from typing import Any

from extraction.pair_files.markdown import read_markdown
from replay_pools.errors import Faults, InputError
from replay_pools.logs.sources import KINDS, read_objects

MARKDOWN = ".md"


def read_rows(source: str, faults: Faults) -> list[tuple[str, dict[str, Any]]]:
    """(place, row) of every row of `source`, a path, with `#section` behind that of a Markdown file.

    Args:
        faults: takes what is damaged or no object, and what is wrong with sections.

    Raises:
        InputError: no such file, or a section of a file that is no Markdown.
    """
    path, selector = _located(source)
    if not path.is_file():
        kinds = f"builtin, builtin:MODE or a file ({', '.join(KINDS)}, {MARKDOWN}#SECTION)"
        raise InputError(f"pairs {source}", expected=kinds, found="no such file")
    if path.suffix == MARKDOWN:
        return read_markdown(_text(path), str(path), selector, faults)
    if selector:
        raise InputError(f"pairs {source}", expected=f"#section behind a {MARKDOWN} file alone", found=path.name)
    return [(row.where, row.fields) for row in read_objects(path, faults)]


def _located(source: str) -> tuple[Path, str]:
    """(path, what stands behind `#`); a file with `#` in its name is itself."""
    path, _, selector = source.partition("#")
    return (Path(source), "") if Path(source).is_file() else (Path(path), selector)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(path, expected="text in UTF-8", found=str(error)) from error
