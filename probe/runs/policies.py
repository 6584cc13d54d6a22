"""The policy that the settings of a run name, with its adapter: any of peft's, or one of `probe train`."""

from pathlib import Path

import extraction.adapters.delta_s  # noqa: F401 (teaches peft the adapters of `probe train`)
from probe.settings.model import ModelConfig
from replay_pools.policy.load import Policy, adapter_directory, load_policy


def configured_policy(model: ModelConfig, cache_dir: Path, *, device: str | None = None) -> Policy:
    """Load the policy of the table `model`.

    Args:
        model: name, adapter, dtype and device.
        cache_dir: of SVDs, which the adapter of a training may be along.
        device: instead of the model's.

    Raises:
        InputError: as of `load_policy`.
    """
    return load_policy(
        str(model.name),
        adapter=model.adapter,
        dtype=model.dtype,
        device=device or model.device,
        svd_cache=cache_dir / "svd",
    )


def configured_adapter(model: ModelConfig) -> Path | None:
    """The directory of the adapter of the table `model`; None without one."""
    return None if model.adapter is None else adapter_directory(str(model.name), model.adapter)
