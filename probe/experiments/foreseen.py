"""What was vacuous in a spec before its first run: written by its sweep, read for its verdict, without torch."""

from collections.abc import Mapping
from pathlib import Path

from probe.experiments.jobs import sweep_folder
from probe.experiments.prereg import preregistered
from probe.experiments.spec import Spec
from replay_pools.files import read_json, write_json

FILE = "vacuous.json"


def write_foreseen(spec: Spec, out_dir: Path, vacuous: Mapping[str, str]) -> None:
    """`vacuous` is {key of the spec: why}."""
    write_json(sweep_folder(spec, out_dir) / FILE, {"spec": preregistered(spec), "vacuous": vacuous})


def read_foreseen(spec: Spec, out_dir: Path) -> dict[str, str]:
    """{key of the spec: why} of this very spec; empty where its sweep has not begun."""
    path = sweep_folder(spec, out_dir) / FILE
    stored = read_json(path) if path.is_file() else {}
    return stored["vacuous"] if stored.get("spec") == preregistered(spec) else {}
