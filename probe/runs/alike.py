"""Find runs with steps of the same size, to estimate the time of a run. No torch."""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probe.records.run import CONFIG_FILE, run_names
from probe.settings.run import StepConfig, read_config
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat

# The settings that affect the time of a step most; None in a run of the other verb.
STEP_SIZE = (
    *("verb", "model.name", "model.dtype", "rollouts.prompts_per_step", "rollouts.group"),
    *("rollouts.iterations", "rollouts.sampler.max_new_tokens", "source.replay_dirs", "source.per_pool"),
)


def step_size(config: StepConfig) -> dict[str, Any]:
    """Return the settings that affect the time of a step most."""
    table = flat(asdict(config))
    return {key: table.get(key) for key in STEP_SIZE}


def runs_alike(config: StepConfig, out_dir: Path) -> list[Path]:
    """Return the runs in `out_dir`/runs with the step size of these settings."""
    size, alike = step_size(config), []
    for name in run_names(out_dir / "runs"):
        path = out_dir / "runs" / name / CONFIG_FILE
        with suppress(InputError, KeyError):  # a damaged run must not stop the plan
            if step_size(read_config(read_json(path)["settings"], path)) == size:
                alike.append(path.parent)
    return alike
