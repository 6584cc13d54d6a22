"""Find runs with steps of the same size, to estimate the time of a run. No torch."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from probe.records.run import CONFIG_FILE, run_names, settings_of
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat

# The settings that affect the time of a step most; None in a run of the other verb.
STEP_SIZE = (
    *("verb", "model.name", "model.dtype", "rollouts.engine", "rollouts.prompts_per_step", "rollouts.group"),
    *("rollouts.iterations", "rollouts.sampler.max_new_tokens", "source.replay_dirs", "source.per_pool"),
)


def step_size(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the time of a step most."""
    table = flat(settings)
    return {key: list(value) if isinstance(value := table.get(key), tuple) else value for key in STEP_SIZE}


def runs_alike(settings: Mapping[str, Any], out_dir: Path) -> list[Path]:
    """Return the runs in `out_dir`/runs with the step size of these settings."""
    size, alike = step_size(settings), []
    for name in run_names(out_dir / "runs"):
        with suppress(InputError):  # a damaged run must not stop the plan
            if step_size(settings_of(read_json(out_dir / "runs" / name / CONFIG_FILE))) == size:
                alike.append(out_dir / "runs" / name)
    return alike
