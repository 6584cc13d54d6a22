"""probe doctor: is this machine fit for the work, and what to do where it is not."""

from pathlib import Path

import click

from probe.cli._frame import echo_json, json_option, out_option


@click.command()
@out_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, out: Path, as_json: bool) -> None:
    """Check Python, packages, devices, disk, isolation, the grader and the built-in data, with a fix for what fails.

    Exit code 1 on a failure; a warning is none. Example:

      probe doctor --out /data/probe
    """
    from probe.cli._doctor import diagnose  # packaging and the grader: --help does not wait for them

    findings = diagnose(out)
    failed = sum(finding.status == "fail" for finding in findings)
    if as_json:
        echo_json({"ok": not failed, "checks": findings})
    else:
        for finding in findings:
            fix = f"; fix: {finding.fix}" if finding.fix else ""
            click.echo(f"{finding.status:<5} {finding.name:<10} {' '.join(finding.found.split())}{fix}")
    ctx.exit(1 if failed else 0)
