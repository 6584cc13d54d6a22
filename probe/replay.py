"""`probe replay`, assembled: pools -> policy -> coordinates -> directions -> steps -> a run directory.

Everything that shapes the numbers is resolved first and written to `config.json`; `replay(config)` from that file
repeats the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from extraction.library import DirectionLibrary, attach_basis
from extraction.vocabulary import Basis
from probe.arms import Arm, get_arm
from probe.config import GateConfig, ReplayConfig
from probe.gram import GramRecorder
from probe.loop import Pass, is_complete, open_run, run_steps
from probe.sources import ReplaySource
from probe.step import Measure
from replay_pools.errors import InputError
from replay_pools.files import dump_json, sha256
from replay_pools.policy import Policy, load_policy, load_tokenizer
from replay_pools.pool import Pool, open_pool, resolve_pool


def replay(
    config: ReplayConfig,
    directory: Path,
    *,
    out_dir: Path,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run (or resume) a replay into `directory`; caches live under `out_dir`/cache.

    Raises:
        InputError: anything wrong with the options, pools, model or directions.
    """
    arms = _arms(config)
    sources = _Inputs(config, out_dir, say)
    config = sources.config
    source = ReplaySource(
        sources.pools,
        per_pool=config.source.per_pool,
        match=config.source.match,
        steps=config.source.steps,
        seed=config.seed,
    )
    done = open_run(directory, sources.record())
    if is_complete(directory):
        say(f"{directory} is complete; nothing to do")
        return
    passes = [_pass(basis, arms, config, sources, directory, out_dir, say) for basis in _bases(arms)]
    run_steps(
        directory,
        source,
        passes,
        config.objective,
        pad_id=sources.policy.pad_id,
        done=done,
        lr=config.lr,
        progress=progress,
    )


class _Inputs:
    """The pools and the policy that a replay reads, each resolved once and announced."""

    def __init__(self, config: ReplayConfig, out_dir: Path, say: Callable[[str], None]) -> None:
        self.config = config
        paths = [resolve_pool(name, out_dir) for name in config.source.replay_dirs]
        self.pools = [open_pool(path, tokenize=self._tokenize) for path in paths]
        for pool in self.pools:
            say(f"pool {pool.name}: {pool.path}")
            for sentence in pool.normalised:
                say(f"pool {pool.name}: {sentence}")
        self.config = _with_length(config, self.pools)

    @cached_property
    def policy(self) -> Policy:
        """The policy, checked against every pool."""
        policy = self.load()
        for pool in self.pools:
            _check_pool(pool, policy)
        return policy

    def load(self) -> Policy:
        """A fresh copy of the policy: every basis adapts its own."""
        model = self.config.model
        return load_policy(self.model_name, dtype=model.dtype, device=model.device)

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
        pools = [
            {"name": p.name, "path": str(p.path), "manifest_sha256": sha256(dump_json(p.manifest))} for p in self.pools
        ]
        return {
            "verb": "replay",
            "replay": asdict(self.config),
            "pools": pools,
            "model": self.model_name,
            "base_weights_sha256": self.policy.base_weights_sha,
        }

    def _tokenize(self, text: str) -> list[int]:
        """For pools in the predecessor format, which store no prompt ids."""
        if self.config.model.name is None:
            raise InputError("--model", expected="the model of a pool without manifest", found="none given")
        return self._fresh_tokenizer.encode(text, add_special_tokens=False)

    @cached_property
    def _fresh_tokenizer(self) -> Any:
        return load_tokenizer(self.model_name)


def _with_length(config: ReplayConfig, pools: Sequence[Pool]) -> ReplayConfig:
    """dr_grpo divides by the generation limit: the one given, or the largest that a pool's sampler records."""
    if config.objective.loss_type != "dr_grpo" or config.objective.max_completion_length is not None:
        return config
    limits = [(pool.manifest.get("sampler") or {}).get("max_new_tokens") for pool in pools]
    length = max((limit for limit in limits if limit is not None), default=None)
    return replace(
        config,
        objective=replace(config.objective, max_completion_length=length),
        extraction=replace(config.extraction, max_completion_length=length),
    )


def _arms(config: ReplayConfig) -> list[Arm]:
    """The arms by name, checked against the other options."""
    arms = [get_arm(name) for name in config.arms]
    if len({arm.name for arm in arms}) != len(arms) or not arms:
        raise InputError("--arm", expected="different arms, at least one", found=",".join(config.arms) or "none")
    if config.lr > 0 and len(arms) > 1:
        raise InputError("--arm", expected="one arm when --lr is above 0", found=",".join(config.arms))
    return arms


def _bases(arms: Sequence[Arm]) -> list[Basis]:
    return list(dict.fromkeys(arm.basis for arm in arms))


def _pass(
    basis: Basis,
    arms: Sequence[Arm],
    config: ReplayConfig,
    inputs: _Inputs,
    directory: Path,
    out_dir: Path,
    say: Callable[[str], None],
) -> Pass:
    """Adapt a copy of the policy in one basis and get the directions of its arms."""
    policy = inputs.policy if basis == _bases(arms)[0] else inputs.load()
    coordinates = attach_basis(policy, basis, rank=config.model.lora_rank, cache_dir=out_dir / "cache")
    library = DirectionLibrary(
        policy,
        coordinates,
        config.extraction,
        cache_dir=out_dir / "cache",
        seed=config.seed,
        v_hack=None if config.v_hack is None else Path(config.v_hack),
        say=say,
    )
    measures = [_measure(arm, library, config.gate, policy) for arm in arms if arm.basis == basis]
    return Pass(
        coordinates=coordinates,
        measures=measures,
        gram=GramRecorder(directory, library.pair_gradients, library.v_hack) if basis == "svd" else None,
    )


def _measure(arm: Arm, library: DirectionLibrary, gate: GateConfig, policy: Policy) -> Measure:
    return Measure(
        arm=arm,
        vectors=library.get(arm.directions).to(policy.device).vectors,
        gate=gate.gate or arm.gate,
        overshoot=gate.overshoot,
        preserve_magnitude=gate.preserve_magnitude,
    )


def _check_pool(pool: Pool, policy: Policy) -> None:
    """Refuse a pool that another model or tokenizer wrote. Pools without manifest carry nothing to check."""
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
