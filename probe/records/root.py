"""OUT, the root folder of what verbs write and look up by name (`--out`): OUT/runs/NAME, OUT/pools/NAME and so on."""

import shlex
from pathlib import Path

DEFAULT_OUT = Path("out")


def out_of(run: Path) -> Path:
    """OUT of a run in OUT/runs/NAME, from here where it is below this folder, else absolute; else the default."""
    directory = run.resolve()
    if directory.parent.name != "runs":
        return DEFAULT_OUT
    out_dir = directory.parent.parent
    return out_dir.relative_to(Path.cwd()) if out_dir.is_relative_to(Path.cwd()) else out_dir


def elsewhere(out: Path) -> str:
    """` --out OUT`, to append to a command that is proposed as the next one; "" for the default folder."""
    return "" if out == DEFAULT_OUT else f" --out {shlex.quote(str(out))}"


def in_root(commands: str, out: Path) -> str:
    """Commands, one a line, that write to this root folder and look up in it."""
    return "\n".join(command + elsewhere(out) for command in commands.splitlines())
