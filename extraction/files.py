"""Find direction files by name. No torch."""

from pathlib import Path

from extraction.words import PAIR_GRADIENTS
from replay_pools.base.errors import unknown_name
from replay_pools.base.files import by_name

OUT = Path("out")  # relative to the working directory


def resolve_directions(file: str | Path, out: Path = OUT) -> Path:
    """Return the path of a direction file, from a path or a name in `out`/directions.

    Raises:
        InputError: no such file; the message lists the names in `out`/directions.
    """
    file, folder = Path(file), out / "directions"
    path = by_name(file, folder / f"{file.name}.safetensors")
    if path.is_file():
        return path
    expected = f"a direction file, or the name of one in {folder}"
    raise unknown_name(
        f"directions {file}", file.name, direction_names(out), expected=expected, fix="run probe extract"
    )


def direction_names(out: Path) -> list[str]:
    """Return the sorted names of the direction files in `out`/directions."""
    files = (out / "directions").glob("*.safetensors")
    return sorted(path.stem for path in files if not path.name.endswith(PAIR_GRADIENTS))
