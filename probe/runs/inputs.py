"""The pools and the policy that a replay reads, each resolved once and announced."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from extraction.library import source_identity
from probe.settings.loss import LossCondition, LossSettings
from probe.settings.run import RunConfig
from replay_pools.errors import InputError
from replay_pools.policy import Policy, load_policy, load_tokenizer
from replay_pools.pool import Pool, open_pool, resolve_pool


class ReplayInputs:
    """What a replay reads. `config` is the given one with every default that the pools decide filled in.

    Args:
        device: where the policy is loaded.
    """

    def __init__(self, config: RunConfig, out_dir: Path, say: Callable[[str], None], device: str) -> None:
        assert config.source is not None  # of every replay
        self.config, self.source, self._device = config, config.source, device
        paths = [resolve_pool(name, out_dir) for name in self.source.replay_dirs]
        self.pools = [open_pool(path, tokenize=self._tokenize) for path in paths]
        for pool in self.pools:
            say(f"pool {pool.name}: {pool.path}")
            for sentence in pool.normalised:
                say(f"pool {pool.name}: {sentence}")
        self.config = _resolved(config, self.pools)

    @cached_property
    def policy(self) -> Policy:
        """The policy, checked against every pool."""
        policy = load_policy(self.model_name, dtype=self.config.model.dtype, device=self._device)
        for pool in self.pools:
            _check_pool(pool, policy)
        return policy

    @cached_property
    def model_name(self) -> str:
        """The model asked for, or the base model that all pools name."""
        if self.config.model.name is not None:
            return self.config.model.name
        names = {str((pool.manifest.get("policy") or {}).get("base_model")) for pool in self.pools}
        if len(names) != 1 or "None" in names:
            found = ", ".join(sorted(names))
            raise InputError("--model", expected="one base model named by all pools", found=found, fix="pass --model")
        return names.pop()

    def record(self) -> dict[str, Any]:
        """What `config.json` holds."""
        weights = {"model": self.model_name, "base_weights_sha256": self.policy.base_weights_sha}
        return self.record_without_weights() | weights

    def record_without_weights(self) -> dict[str, Any]:
        """All of it that is known before the policy is loaded."""
        intervention = self.config.intervention
        return {
            "settings": asdict(self.config),
            "pools": [pool.identity() for pool in self.pools],
            "directions": source_identity(intervention.extraction, intervention.v_hack),
        }

    def _tokenize(self, text: str) -> list[int]:
        """For pools in the predecessor format, which store no prompt ids."""
        if self.config.model.name is None:
            raise InputError("--model", expected="the model of a pool without manifest", found="none given")
        return self._fresh_tokenizer.encode(text, add_special_tokens=False)

    @cached_property
    def _fresh_tokenizer(self) -> Any:
        return load_tokenizer(self.model_name)


def _resolved(config: RunConfig, pools: Sequence[Pool]) -> RunConfig:
    """dr_grpo divides by the generation limit: the one given, or the largest that a pool's sampler records."""
    limits = [(pool.manifest.get("sampler") or {}).get("max_new_tokens") for pool in pools]
    longest = max((limit for limit in limits if limit is not None), default=None)
    conditions = []
    for condition in config.conditions:
        changes = condition.changes
        if _lacks_divisor(condition.objective(config.objective)):
            changes = {**changes, "max_completion_length": longest}
        conditions.append(LossCondition(name=condition.name, changes=changes))
    objective = config.objective
    if _lacks_divisor(objective):
        objective = replace(objective, max_completion_length=longest)
    return replace(config, objective=objective, conditions=tuple(conditions))


def _lacks_divisor(objective: LossSettings) -> bool:
    return objective.loss_type == "dr_grpo" and objective.max_completion_length is None


def _check_pool(pool: Pool, policy: Policy) -> None:
    """Refuse a pool that another model or tokenizer wrote, as far as it says so, and ids that the model lacks."""
    embedding = policy.model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    size = embedding.num_embeddings
    for rollout in (rollout for group in pool.steps for rollout in group):
        ids = [*rollout.prompt_ids, *rollout.completion_ids]
        if ids and not 0 <= min(ids) <= max(ids) < size:
            where = f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}"
            found = f"{min(ids)} to {max(ids)}"
            raise InputError(where, expected=f"token ids of {policy.base_model}, 0 to {size - 1}", found=found)
    stored = pool.manifest.get("policy") or {}
    checks = (
        ("tokenizer", pool.manifest.get("tokenizer_sha256"), policy.tokenizer_sha()),
        ("base weights", stored.get("base_weights_sha256"), policy.base_weights_sha),
    )
    for what, found, expected in checks:
        if found is not None and found != expected:
            raise InputError(
                f"pool {pool.name}",
                expected=f"rollouts of {policy.base_model} ({what} {expected[:12]})",
                found=f"rollouts of {stored.get('base_model')} ({what} {str(found)[:12]})",
                fix="pass the --model that sampled it, or generate the pool again",
            )
