"""Inputs of a run, checked before the weights are loaded: a replay's pools, a training's problems.

    inputs = ReplayInputs(config, out_dir, say, world)      or TrainingInputs; refuses what needs no weights
    done = inputs.begin(directory)                          loads the policy, and writes `config.json`
    setup = assemble(inputs, directory, num_steps)

`record` is what `config.json` holds of them, so that a run with other inputs is another run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from extraction.library import config_sha
from probe.records.records import StepRecord
from probe.records.run import MANIFEST_FILE
from probe.records.timings import Timings
from probe.runs.assemble import configured_adapter, configured_policy
from probe.runs.directions import directions_source
from probe.runs.monitors import check_monitor
from probe.runs.resume import open_run
from probe.settings.run import StepConfig
from probe.settings.training import ModelConfig
from probe.step.distributed import SOLO, World
from replay_pools.policy.adapters import adapter_sha
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool

Config = TypeVar("Config", bound=StepConfig)


class Inputs(Generic[Config]):
    """What a run reads, and with whom it runs.

    Attributes:
        config: the settings, with the defaults that depend on the inputs.
        out_dir: root of what is written; pools given by name are looked up in it.
        say: called with a line of progress, and with every caution.

    Raises:
        InputError: no such monitor or pool.
    """

    pools: Sequence[Pool] = ()  # that the run reads

    def __init__(
        self, config: Config, out_dir: Path, say: Callable[[str], None] = lambda text: None, world: World = SOLO
    ) -> None:
        check_monitor(config, out_dir)
        self.config, self.out_dir, self.say, self.world = config, out_dir, say, world
        self.cache, self.timings = out_dir / "cache", Timings()

    @property
    def model(self) -> ModelConfig:
        """The table `model`, with a name."""
        return self.config.model

    @cached_property
    def policy(self) -> Policy:
        """The policy with its adapter, loaded on first use."""
        with self.timings.phase("load"):
            policy = configured_policy(self.model, self.cache, device=self.world.loads_on(self.config.model.device))
            self.check(policy)
        return policy

    def check(self, policy: Policy) -> None:
        """Refuse a policy that the inputs do not fit."""

    def record(self) -> dict[str, Any]:
        """Return the part of `config.json` that needs neither weights nor the number of ranks."""
        start = configured_adapter(self.model)
        return {
            "settings": asdict(self.config),
            "pools": [pool.identity() for pool in self.pools],
            "directions": directions_source(self.config.intervention),
            "adapter_sha256": None if start is None else adapter_sha(*start),
        }

    def begin(self, directory: Path, more: Mapping[str, Any] = MappingProxyType({})) -> list[StepRecord] | None:
        """Begin or continue the run in `directory`, with `more` in its `config.json`; all ranks call this.

        Returns:
            The records of the finished steps; None if the run is complete.

        Raises:
            InputError: wrong weights, or a directory with another run.
        """
        record = self.record() | {
            "model": self.policy.base_model,
            "base_weights_sha256": self.policy.base_weights_sha,
            "model_config_sha256": config_sha(self.policy.model.config),
            **more,
        }
        done = self.world.on_main(lambda: open_run(directory, record))
        if self.world.on_main((directory / MANIFEST_FILE).exists):
            self.say(f"{directory} is complete; nothing to do")
            return None
        return done


def with_divisor(config: Config, limit: int | None) -> Config:
    """Fill in the divisor of dr_grpo, a limit in tokens, in every loss that lacks it."""
    objective, filled = config.objective, {"max_completion_length": limit}
    conditions = [
        replace(one, changes={**one.changes, **filled}) if one.objective(objective).lacks_divisor else one
        for one in config.conditions
    ]
    if objective.lacks_divisor:
        objective = replace(objective, **filled)
    return replace(config, objective=objective, conditions=tuple(conditions))
