"""The policy that the settings of a run name, with its adapter: any of peft's, or one of `probe train`."""

from pathlib import Path

import extraction.adapters.delta_s  # noqa: F401 (teaches peft the adapters of `probe train`)
from probe.settings.model import ModelConfig
from replay_pools.policy.load import Policy, adapter_directory, load_policy


def configured_policy(model: ModelConfig, *, device: str | None = None) -> Policy:
    """Load the policy of the table `model`, on another device if one is given; InputError as of `load_policy`."""
    return load_policy(str(model.name), adapter=model.adapter, dtype=model.dtype, device=device or model.device)


def configured_adapter(model: ModelConfig) -> Path | None:
    """The directory of the adapter of the table `model`; None without one."""
    return None if model.adapter is None else adapter_directory(str(model.name), model.adapter)
