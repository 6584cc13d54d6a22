"""Direction files by name. No torch."""

from pathlib import Path

from extraction.words import PAIR_GRADIENTS
from replay_pools.errors import unknown_name
from replay_pools.storage.files import by_name

OUT = Path("out")  # relative to the working directory


def resolve_directions(file: str | Path, out: Path = OUT) -> Path:
    """A direction file: a path, or else the name of one in `out`/directions.

    Raises:
        InputError: there is none; those in `out`/directions are listed.
    """
    file, folder = Path(file), out / "directions"
    path = by_name(file, folder / f"{file.name}.safetensors")
    if path.is_file():
        return path
    expected = f"a file of probe extract, or the name of one in {folder}"
    raise unknown_name(
        f"directions {file}", file.name, direction_names(out), expected=expected, fix="run probe extract"
    )


def direction_names(out: Path) -> list[str]:
    """The names of the direction files in `out`/directions, sorted."""
    files = (out / "directions").glob("*.safetensors")
    return sorted(path.stem for path in files if not path.name.endswith(PAIR_GRADIENTS))
