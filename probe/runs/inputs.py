"""Inputs of `probe replay`: open its pools, fill in the defaults that they decide, load and check its policy."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from extraction.library import check_pairs
from extraction.pairs import selected_pairs
from probe.runs.directions import directions_source
from probe.runs.policies import configured_adapter, configured_policy
from probe.settings.loss import LossCondition
from probe.settings.model import ModelConfig
from probe.settings.run import RunConfig
from replay_pools.errors import InputError
from replay_pools.policy.adapters import adapter_sha
from replay_pools.policy.load import Policy
from replay_pools.pool import BUILTIN, Pool, open_pool, resolve_pool
from replay_pools.vocabulary import Vocabulary, load_vocabulary


class ReplayInputs:
    """The pools and the policy of a replay; the policy is loaded when it is first asked for.

    Attributes:
        config: the given one with every default that the pools decide filled in (the divisor of dr_grpo).
        pools: the opened pools of `source.replay_dirs`, in that order.

    Args:
        config: of a replay.
        out_dir: pools given by name are looked up in it.
        say: gets a line for every pool that is not built in, with where it is, and for every caution about it.
        device: where the policy is loaded.

    Raises:
        InputError: no such pool, or one in a format that cannot be read.
    """

    def __init__(self, config: RunConfig, out_dir: Path, say: Callable[[str], None], device: str) -> None:
        assert config.source is not None  # `RunConfig` refuses a replay without one
        self.source, self._device, self._say = config.source, device, say
        self._cache_dir = out_dir / "cache"
        paths = [resolve_pool(name, out_dir) for name in self.source.replay_dirs]
        self.pools = [open_pool(path) for path in paths]
        for pool in self.pools:
            if pool.path.parent != BUILTIN:
                say(f"pool {pool.name}: {pool.path}")
            for sentence in pool.cautions:
                say(f"pool {pool.name}: {sentence}")
        self.config = _resolved(config, self.pools)

    @cached_property
    def policy(self) -> Policy:
        """The policy with its adapter, checked against every pool; InputError where other base weights wrote one."""
        policy = configured_policy(self._model, self._cache_dir, device=self._device)
        for pool in self.pools:
            _check_hash(pool, "base_weights_sha256", policy.base_weights_sha, policy.base_model)
        return policy

    def check_tokens(self) -> None:
        """InputError where another tokenizer wrote a pool, or its ids and texts are not those of the model.

        Loads no weights. An id beyond the embedding would fail inside a forward, on a GPU without naming the rollout.
        """
        for pool in self.pools:
            _check_hash(pool, "tokenizer_sha256", self._vocabulary.chat.tokenizer_sha(), self.model_name)
            self._vocabulary.check(pool)
            for sentence in self._vocabulary.cautions(pool):
                self._say(f"pool {pool.name}: {sentence}")

    def check_pairs(self) -> None:
        """InputError with all faults of the pairs to extract from; loads no weights."""
        if self.config.intervention.v_hack is None:
            extraction = self.config.intervention.extraction
            for sentence in check_pairs(self._vocabulary, selected_pairs(extraction), extraction.k):
                self._say(sentence)

    @cached_property
    def model_name(self) -> str:
        """The model asked for, or the base model that all pools name."""
        if self.config.model.name is not None:
            return self.config.model.name
        names = {str((pool.manifest.get("policy") or {}).get("base_model")) for pool in self.pools}
        if len(names) != 1 or "None" in names:
            listed = ", ".join(sorted(names))
            raise InputError("--model", expected="one base model named by all pools", found=listed, fix="pass --model")
        return names.pop()

    @property
    def _model(self) -> ModelConfig:
        """The table `model` with the name that the pools may have given."""
        return replace(self.config.model, name=self.model_name)

    def record(self) -> dict[str, Any]:
        """What `config.json` of the run holds; loads the policy for the hash of its weights."""
        weights = {"model": self.model_name, "base_weights_sha256": self.policy.base_weights_sha}
        return self.record_without_weights() | weights

    def record_without_weights(self) -> dict[str, Any]:
        """All of `record` that is known before the policy is loaded."""
        record = {
            "settings": asdict(self.config),
            "pools": [pool.identity() for pool in self.pools],
            "directions": directions_source(self.config.intervention),
        }
        adapter = configured_adapter(self._model)
        return record if adapter is None else record | {"adapter_sha256": adapter_sha(adapter)}

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return load_vocabulary(self.model_name)


def _resolved(config: RunConfig, pools: Sequence[Pool]) -> RunConfig:
    """The configuration with the divisor of dr_grpo, a token limit, filled in where none is given.

    It is the largest `max_new_tokens` that the samplers of the pools record; None, if none of them records any.
    """
    limits = [(pool.manifest.get("sampler") or {}).get("max_new_tokens") for pool in pools]
    longest = max((limit for limit in limits if limit is not None), default=None)
    conditions = []
    for condition in config.conditions:
        changes = condition.changes
        if condition.objective(config.objective).lacks_divisor:
            changes = {**changes, "max_completion_length": longest}
        conditions.append(LossCondition(name=condition.name, changes=changes))
    objective = config.objective
    if objective.lacks_divisor:
        objective = replace(objective, max_completion_length=longest)
    return replace(config, objective=objective, conditions=tuple(conditions))


def _check_hash(pool: Pool, key: str, loaded: str, model: str) -> None:
    """Refuse a pool whose manifest names other weights or another tokenizer; one without the hash is taken on trust."""
    stored = pool.manifest["policy"]
    recorded = pool.manifest.get(key) or stored.get(key)
    what = key.removesuffix("_sha256").replace("_", " ")
    if recorded is not None and recorded != loaded:
        raise InputError(
            f"pool {pool.name}",
            expected=f"rollouts of {model} ({what} {loaded[:12]})",
            found=f"rollouts of {stored.get('base_model')} ({what} {str(recorded)[:12]})",
            fix="pass the --model that sampled it, or generate the pool again",
        )
