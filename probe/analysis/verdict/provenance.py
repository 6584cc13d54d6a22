"""Where a run comes from: how its pools were made and graded, and the gate that it was told.

`pool_facts` and `gate_facts` read `config.json`, the manifests of the pools and their regrades; `pools_at_hand` lists
the pools that another replay could read.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.analysis.verdict.commands import regrade
from probe.analysis.verdict.evidence import GateFacts, PoolFacts, PoolPlan
from probe.records.root import elsewhere, out_of
from probe.records.run import OWN_POOLS, Run
from probe.settings.presets import configure, setting_text
from replay_pools.agreement import read_regrade
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.pool import MANIFEST_NAME, pool_names, pool_reference, resolve_pool
from replay_pools.storage.files import dump_json, parse_json, sha256


def pool_facts(run: Run) -> list[PoolFacts]:
    """The pools of a run: of a training run its own rollouts first, then its teacher's.

    Of a pool that was moved or changed since, nothing is known but an earlier regrade: what its manifest says now is
    not of this run.
    """
    facts = []
    for name in OWN_POOLS:
        manifest_sha256 = run.manifest.get("files", {}).get(f"{name}/{MANIFEST_NAME}")
        if manifest_sha256:
            facts.append(_facts(run, name, run.path / name, manifest_sha256, f"{run.path.resolve().name}-{name}"))
    for pool in run.config.get("pools", ()):
        facts.append(_facts(run, pool["name"], Path(pool["path"]), pool["manifest_sha256"], pool["name"]))
    return facts


def _facts(run: Run, name: str, directory: Path, expected: str, regrade_name: str) -> PoolFacts:
    """What the manifest in `directory` says if its hash is `expected`, and the regrade that lies in OUT of the run.

    Args:
        regrade_name: what the proposed regrade is called, with `-again` after it.
    """
    path = directory / MANIFEST_NAME
    data = path.read_bytes() if path.is_file() else b"{}"
    manifest, identity = parse_json(data, path), expected
    # A run's manifest hashes the bytes of its files, its config the JSON of a pool (`Pool.identity`).
    if sha256(data) == expected:
        identity = sha256(dump_json(manifest))
    elif sha256(dump_json(manifest)) != expected:
        manifest = {}
    grader = manifest.get("grader") or {}
    out_dir = out_of(run.path)
    # Of a pool that was moved the name may find a copy, as of a built-in one; its old path finds nothing.
    plan = _plan(name, pool_reference(directory, out_dir) if path.is_file() else name, manifest)
    return PoolFacts(
        name=name,
        grader=grader.get("version"),
        isolation=grader.get("isolation"),
        prompt_tail=manifest.get("prompt_tail"),
        plan=plan,
        regrade=read_regrade(out_dir, identity),
        regrade_command=regrade(plan, f"{regrade_name}-again") + elsewhere(out_dir) if manifest else None,
    )


def pools_at_hand(run: Run) -> list[PoolPlan]:
    """Every finished pool in OUT/pools of the run, and every built-in one."""
    out_dir = out_of(run.path)
    plans = []
    for name in pool_names(out_dir):
        path = resolve_pool(name, out_dir) / MANIFEST_NAME
        plans.append(_plan(name, name, parse_json(path.read_bytes(), path)))
    return plans


def has_environment(plan: Mapping[str, Any]) -> bool:
    """Whether a pool's plan names an environment and a mode; the log of another program may not, or several."""
    return isinstance(plan.get("env"), str) and isinstance(plan.get("mode"), str)


def _plan(name: str, reference: str, manifest: Mapping[str, Any]) -> PoolPlan:
    plan, policy = manifest.get("plan") or {}, manifest.get("policy") or {}
    problems = [str(plan.get(key)) for key in ("env", "split", "mode", "steps", "seed")]
    return PoolPlan(
        name=name,
        reference=reference,
        hint=plan["hint"] if isinstance(plan.get("hint"), bool) else None,  # a list of an imported log
        policy=f"{policy.get('base_model')}, adapter {policy.get('adapter')}" if policy else None,
        problems=", ".join(problems) if plan else None,
        has_environment=has_environment(plan),
        steps=plan.get("steps"),
        group=plan.get("group"),
        env=plan["env"] if has_environment(plan) else None,
        split=plan.get("split"),
        # Logs of another program have no recipe, nor have the rollouts of a policy that moved.
        recipe=_recipe(manifest) if "steps_per_batch" in plan and name not in OWN_POOLS else None,
    )


def num_problems(pool: PoolPlan) -> int | None:
    """How many problems the environment of a pool has in its split; None where it has none, or its files are gone."""
    if pool.env is None or pool.split is None:
        return None
    try:
        return len(get_environment(pool.env).problems(pool.split))
    except InputError:
        return None


def _recipe(manifest: Mapping[str, Any]) -> str:
    """The options of `probe pool generate`, where they are not its defaults, that sampled a pool.

    No pool says where its server was: the reader puts the address in the place of URL.
    """
    plan, policy, sampler, grader = (manifest[part] for part in ("plan", "policy", "sampler", "grader"))
    usual = configure("generate")
    rollouts = usual.rollouts
    is_served = "engine" in manifest
    # {option: (of the pool, the default)}
    flags = {
        "model": (policy["base_model"], usual.model.name),
        "served-model" if is_served else "adapter": (policy["adapter"], usual.model.adapter),
        "env": (plan["env"], rollouts.env),
        "split": (plan["split"], rollouts.split),
        "mode": (plan["mode"], rollouts.mode),
        "seed": (plan["seed"], usual.seed),
        "temperature": (sampler["temperature"], rollouts.sampler.temperature),
        "max-new-tokens": (sampler["max_new_tokens"], rollouts.sampler.max_new_tokens),
    }
    # The same of what a pool need not record: a server does not tell the precision.
    settings = {
        "model.dtype": (policy.get("dtype"), usual.model.dtype),
        "rollouts.sampler.top_p": (sampler.get("top_p"), rollouts.sampler.top_p),
        "rollouts.sampler.top_k": (sampler.get("top_k"), rollouts.sampler.top_k),
        "rollouts.code_rule": (grader.get("code_rule"), rollouts.code_rule),
        "rollouts.cpu_limit": (grader.get("cpu_s"), rollouts.cpu_limit),
    }
    options = ["--engine server --url URL"] if is_served else []
    options += ["--hint"] if plan["hint"] else []
    options += ["--twice"] if grader.get("twice") else []
    for name, (value, default) in flags.items():
        if value != default:
            options.append(f"--{name} {shlex.quote(str(value))}")
    for key, (value, default) in settings.items():
        if value not in (None, default):
            options.append(f"--set {key}={setting_text(value)}")
    return " ".join(options)


def gate_facts(run: Run) -> GateFacts:
    """The gate options of a run; of a run that says nothing, the defaults."""
    settings = run.settings
    options = settings.get("intervention", {}).get("gate", {})
    return GateFacts(**{name: options[name] for name in ("gate", "overshoot", "target") if name in options})
