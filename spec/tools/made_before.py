"""Name the runs that code without a commit made: which ones a bug that was fixed since concerns.

python spec/tools/made_before.py 5d6334a out/runs/* --set control.target_kl=0.02
"""

import subprocess
from pathlib import Path

import click

from probe.records.run import CONFIG_FILE
from probe.records.timings import starts_of
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat


def has_commit(code: str, fix: str) -> bool | None:
    """Return whether code at the commit `code` contains the commit `fix`; None where git does not know one of them."""
    command = ["git", "merge-base", "--is-ancestor", fix, code]
    answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, check=False)
    return {0: True, 1: False}.get(answer.returncode)


def made_before(run: Path, fix: str, settings: dict[str, str]) -> str | None:
    """Return "yes", "unknown" or None (no) for one run.

    Args:
        run: its folder.
        fix: the commit that mended the bug.
        settings: {key with dots: value} under which the bug acted; a list has to contain the value.
    """
    stored = flat(read_json(run / CONFIG_FILE)["settings"])
    for key, value in settings.items():
        actual = stored.get(key)
        if value not in ([str(item) for item in actual] if isinstance(actual, list) else [str(actual)]):
            return None
    # Every start of a resumed run made a part of it.
    fixed = [start["commit"] and has_commit(start["commit"], fix) for start in starts_of(run)]
    if False in fixed:
        return "yes"
    return "unknown" if None in fixed or not fixed else None


@click.command()
@click.argument("fix")
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting under which the bug acted.")
def main(fix: str, runs: tuple[Path, ...], settings: tuple[str, ...]) -> None:
    """Print the RUNS that code without the commit FIX made, and those that do not say which code made them."""
    wanted = {key: value for key, _, value in (text.partition("=") for text in settings)}
    for run in runs:
        if (answer := made_before(run, fix, wanted)) is not None:
            click.echo(f"{run.name}: {answer}")


if __name__ == "__main__":
    main()
