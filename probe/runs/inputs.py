"""Inputs of a run, checked before the weights are loaded: a replay's pools, a training's problems.

`record` is what `config.json` holds of them, so that a run with other inputs is another run.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from extraction.library import config_sha
from probe.runs.assemble import configured_adapter
from probe.runs.directions import directions_source
from probe.settings.run import StepConfig
from probe.settings.training import ModelConfig
from replay_pools.policy.adapters import adapter_sha
from replay_pools.policy.load import Policy
from replay_pools.pool import Pool


class Inputs(Protocol):
    """The inputs of a replay or of a training."""

    @property
    def config(self) -> StepConfig:
        """The settings, with the defaults that depend on the inputs."""
        ...

    @property
    def model(self) -> ModelConfig:
        """The table `model`, with a name."""
        ...

    def record(self) -> dict[str, Any]:
        """Return the part of `config.json` that needs no weights."""
        ...


def record_of(config: StepConfig, pools: Sequence[Pool], model: ModelConfig) -> dict[str, Any]:
    """Return the part of `config.json` that every run has and that needs no weights."""
    start = configured_adapter(model)
    return {
        "settings": asdict(config),
        "pools": [pool.identity() for pool in pools],
        "directions": directions_source(config.intervention),
        "adapter_sha256": None if start is None else adapter_sha(*start),
    }


def policy_record(policy: Policy) -> dict[str, Any]:
    """Return the part of `config.json` about the weights."""
    hashes = {"base_weights_sha256": policy.base_weights_sha, "model_config_sha256": config_sha(policy.model.config)}
    return {"model": policy.base_model, **hashes}
