"""Measurements: replay, projection, records, analysis."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.integrations.hook import attach
    from probe.records.run import read_run as load

__all__ = ["attach", "load"]

# What `import probe` offers; each is imported when it is first asked for, so that torch stays out until then.
_PLACES = {"attach": ("probe.integrations.hook", "attach"), "load": ("probe.records.run", "read_run")}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'probe' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
