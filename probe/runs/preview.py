"""Preview: what `probe replay --dry-run` and `probe train --dry-run` say of a run. Nothing is written."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.runs.footprint import Footprint
from probe.runs.resume import find_run, is_complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A run that has not been started, or not been finished."""

    path: str
    state: str  # new, continues after N steps, complete
    work: Mapping[str, int]  # steps, rollouts, tokens, ...
    footprint: Footprint

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and texts; the footprint's fields beside the others."""
        row = asdict(self)
        footprint = row.pop("footprint")
        return row | footprint


def make_preview(directory: Path, record: Mapping[str, Any], work: Mapping[str, int], footprint: Footprint) -> Preview:
    """The preview of the run of `record`, some keys of what its `config.json` will hold.

    Raises:
        InputError: `directory` holds another run, or something that is not a run.
    """
    return Preview(path=str(directory), state=_state(directory, record), work=work, footprint=footprint)


def _state(directory: Path, record: Mapping[str, Any]) -> str:
    done = find_run(directory, record, whole=False)
    if done is None:
        return "new"
    if is_complete(directory):
        return "complete, nothing to do"
    return f"continues after {len({row.step for row in done})} steps"
