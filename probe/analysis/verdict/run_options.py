"""How to repeat a run: what `probe replay` and `probe extract` have to be told, because it is not their default."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from probe.records.root import DEFAULT_OUT, out_of
from probe.records.run import Run
from probe.settings.presets import configure, setting_text
from replay_pools.storage.tables import flat

K = "intervention.extraction.k"
USUAL_K = configure("replay").intervention.extraction.k
# Flags of `probe replay`; every other setting goes by --set.
FLAGS = {
    "model.name": "--model",
    "source.per_pool": "--per-pool",
    "intervention.extraction.pairs": "--pairs",
    "intervention.extraction.pairs_map": "--pairs-map",
    K: "--k",
    "intervention.v_hack": "--v-hack",
}
# What the advice itself chooses, and what shapes no number.
CHOSEN = ("verb", "seed", "steps", "conditions", "preregistered", "token_attribution", "intervention.arms")
CHOSEN += ("source.replay_dirs", "source.match", "model.device", "model.dtype_noise")
# What directions of other pairs have in common with those of the run.
OF_EXTRACTION = ("model.", "objective.loss_type", "objective.max_completion_length", "intervention.extraction.")
OF_FILE = ("intervention.extraction.pairs", "intervention.extraction.pairs_map", "intervention.extraction.split_seed")
OF_PAIRS = ("model.name", *OF_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of the commands that repeat a run, {setting: option}, and how a command names it."""

    name: str = "RUN"
    out: Path = DEFAULT_OUT  # its root folder
    replay: Mapping[str, str] = field(default_factory=dict)
    extract: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    num_directions: int = USUAL_K  # a module, where the run extracted them


def run_options(run: Run) -> RunOptions:
    """The options of a run; none of one whose config says nothing."""
    settings = flat(run.settings)
    if settings.get("intervention.v_hack") is not None:
        settings["intervention.v_hack"] = _named(settings["intervention.v_hack"], run)
    replay = changed_options(settings)
    # A direction file holds its pairs.
    if "intervention.v_hack" in replay:
        for key in OF_FILE:
            replay.pop(key, None)
    for condition in run.settings.get("conditions") or ():
        changes = ",".join(f"{key}={value}" for key, value in condition["changes"].items())
        text = condition["name"] + (f":{changes}" if changes else "")
        replay[f"conditions.{condition['name']}"] = f"--condition {shlex.quote(text)}"
    extract = {key: text for key, text in replay.items() if key.startswith(OF_EXTRACTION) and key not in OF_PAIRS}
    model = run.config.get("model")
    # A replay takes the model that its pools name, an extraction the organism.
    if model not in (None, "organism"):
        extract = {"model.name": setting_option("model.name", model), **extract}
    dtype = (run.settings.get("model") or {}).get("dtype", "float32")
    num_directions = settings.get(K, USUAL_K)
    return RunOptions(
        name=_run_name(run),
        out=out_of(run.path),
        replay=replay,
        extract=extract,
        dtype=dtype,
        num_directions=num_directions,
    )


def changed_options(settings: Mapping[str, Any]) -> dict[str, str]:
    """{setting: option} of what is not the default of a replay, without what the advice chooses itself.

    Args:
        settings: {key with dots: value}.
    """
    usual = flat(asdict(configure("replay")))
    changed = {}
    for key, value in settings.items():
        if key not in CHOSEN and key in usual and _plain(value) != _plain(usual[key]):
            changed[key] = setting_option(key, value)
    return changed


def setting_option(key: str, value: Any) -> str:
    """The option of `probe replay` and `probe extract` that gives a setting this value, quoted for a shell."""
    if key in FLAGS:
        return f"{FLAGS[key]} {shlex.quote(str(value))}"
    return f"--set {shlex.quote(f'{key}={setting_text(value)}')}"


def _run_name(run: Run) -> str:
    """The name of a run in OUT/runs, else its path."""
    return run.path.name if run.path.resolve().parent.name == "runs" else shlex.quote(str(run.path))


def _named(v_hack: str, run: Run) -> str:
    """A direction file in OUT/directions by its name."""
    path = Path(v_hack)
    return path.stem if path.resolve().parent == run.path.resolve().parent.parent / "directions" else v_hack


def _plain(value: Any) -> Any:
    """A value as JSON has it, in which a tuple is a list."""
    return list(value) if isinstance(value, tuple) else value
