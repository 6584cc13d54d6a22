"""probe settings, probe docs: the settings of runs and the pages of the manual."""

from importlib.metadata import distribution
from itertools import groupby
from pathlib import Path

import click

from probe.cli._frame import Table, Text
from probe.cli._settings import verb
from probe.settings.verbs import setting_rows
from replay_pools.base.errors import InputError, unknown_name

SHIPPED = "gradient-probe"  # the folder of the manual among the data files of the installed package


@verb(has_out=False)
def settings() -> Text:
    """List every setting for `--set KEY=VALUE`, as Markdown tables.

    Example:  probe settings | grep beta
    """
    yield document().rstrip()
    return [dict(zip(("key", "type", "default", "meaning"), row, strict=True)) for row in setting_rows()]


def document() -> str:
    """Return the Markdown tables of all settings, one section a table."""
    sections = []
    for title, rows in groupby(setting_rows(), lambda row: row[0].partition(".")[0] if "." in row[0] else ""):
        head = f"## {title or 'All other settings'}\n\n| setting | type | default | meaning |\n|---|---|---|---|\n"
        sections.append(head + "".join(f"| `{key}` | {' | '.join(cells)} |\n" for key, *cells in rows))
    return "\n".join(sections)


@verb(has_out=False)
@click.argument("page", required=False)
def docs(page: str | None) -> Text:
    """Print a PAGE of the manual; without one, list the pages.

    Example:  probe docs replay
    """
    folder = manual()
    pages = {path.stem: path for part in ("guide/*.md", "*.md") for path in sorted(folder.glob(part))}
    pages.pop("README", None)  # of the folder: it lists the pages
    if page is None:
        titles = {name: path.read_text(encoding="utf-8").partition("\n")[0] for name, path in pages.items()}
        rows = [(name, title.strip("# "), str(pages[name])) for name, title in titles.items()]
        yield Table(("page", "title"), [row[:2] for row in rows], left=2)
        yield f"\nin {folder}; to read one: probe docs PAGE"
        return [dict(zip(("page", "title", "path"), row, strict=True)) for row in rows]
    page = next((name for name in pages if name.lower() == page.lower()), page)
    if page not in pages:
        raise unknown_name(f"page {page}", page, [*pages], expected="a page of the manual", fix="probe docs lists all")
    text = pages[page].read_text(encoding="utf-8")
    yield text.rstrip()
    return {"page": page, "path": str(pages[page]), "text": text}


def manual() -> Path:
    """Return the folder spec/ of the checkout, or its copy in the installed package.

    `pip install --target` puts the copy next to the packages, and not where the list of files says.

    Raises:
        InputError: neither exists.
    """
    packages = Path(__file__).parents[2]
    folders = [packages / "spec", packages / "share" / SHIPPED]
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
