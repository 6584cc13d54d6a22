"""Scripts of spec/, imported as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load_script(path: Path) -> ModuleType:
    """Import a script by its path; what stands beside it can be imported, too."""
    sys.path.insert(0, str(path.parent))
    found = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # its dataclasses look it up
    found.loader.exec_module(module)
    return module
