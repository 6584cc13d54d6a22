"""The folder of the manual."""

from importlib.metadata import distribution
from pathlib import Path

from replay_pools.base.errors import InputError

SHIPPED = "gradient-probe"  # the folder of the manual among the data files of the installed package


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
