"""probe settings: every setting of a run, with its type, default and meaning."""

import click

from probe.cli._frame import echo, echo_json, json_option
from probe.settings.run import setting_rows


@click.command()
@json_option
def settings(as_json: bool) -> None:
    """Every setting that `--set KEY=VALUE` takes, as the Markdown tables of spec/guide/settings.md.

    Example:  probe settings | grep beta
    """
    if as_json:
        echo_json([dict(zip(("key", "type", "default", "meaning"), row, strict=True)) for row in setting_rows()])
    else:
        echo(document().rstrip())


def document() -> str:
    """A section for each table of settings."""
    lines: list[str] = []
    title = ""
    for key, kind, default, meaning in setting_rows():
        table = key.partition(".")[0] if "." in key else "All other settings"
        if table != title:
            title = table
            lines += ["", f"## {title}", "", "| setting | type | default | meaning |", "|---|---|---|---|"]
        lines.append(f"| `{key}` | {kind} | {default} | {meaning} |")
    return "\n".join(lines[1:]) + "\n"
