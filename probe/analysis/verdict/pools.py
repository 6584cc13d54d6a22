"""Origin of a run's pools: how they were sampled and graded."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from probe.analysis.statistics.thresholds import SAME_WEIGHTS
from probe.records.run import OWN_POOLS, Run, elsewhere, out_of
from probe.settings.presets import setting_text
from replay_pools.base.errors import InputError
from replay_pools.base.files import SEAL, dump_json, parse_json, read_json, read_plain, sha256
from replay_pools.pool import BUILTIN, CAUTION, MANIFEST_NAME, open_pool, pool_names, pool_reference, resolve_pool
from replay_pools.rollout import UNKNOWN, Rollout

ONLY_STEP = "probe replay --only-step"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """A pool that a run read or wrote, as its manifest describes it."""

    name: str
    path: Path | None = None  # None: missing, or changed since the run
    reference: str  # its name in a command, or its path if the name does not find it
    manifest: Mapping[str, Any] = field(default_factory=dict)  # empty: missing, or changed since the run
    regrade: "PoolFacts | None" = None  # a pool in OUT that grades its rollouts again

    def said(self, key: str) -> Any:
        """Return the manifest's value for a dotted key; None if absent."""
        value: Any = self.manifest
        for part in key.split("."):
            value = (value or {}).get(part)
        return value

    @property
    def policy(self) -> tuple[Any, ...]:
        """The model and adapter that sampled it."""
        return self.said("policy.base_model"), self.said("policy.adapter")


def pool_facts(run: Run) -> list[PoolFacts]:
    """Return the pools of a run; a training run's own rollouts come before the hacking policy's.

    Nothing is known about a pool that was moved or changed since: its manifest is not the one that this run read.
    """
    out_dir, hashes = out_of(run.path), run.manifest.get("files", {})
    places = [(name, run.path / name, hashes.get(f"{name}/{MANIFEST_NAME}")) for name in OWN_POOLS]
    places += [(pool["name"], Path(pool["path"]), pool["manifest_sha256"]) for pool in run.config.get("pools", ())]
    facts, places = [], [place for place in places if place[-1]]
    regrades = _regrades(out_dir) if places else {}
    for name, directory, expected in places:
        if not directory.exists() and (BUILTIN / name).is_dir():
            directory = BUILTIN / name  # the installation determines the path of a built-in pool
        path = directory / MANIFEST_NAME
        data = read_plain(path) if path.is_file() else b"{}"
        manifest = {key: value for key, value in parse_json(data, path).items() if key != SEAL}
        # A run's manifest hashes the bytes of its files, its config the JSON of a pool (`Pool.identity`).
        if expected not in (sha256(data), sha256(dump_json(manifest))):
            manifest = {}
        # After a move the name may find a copy of the pool; the old path finds nothing.
        reference = pool_reference(directory, out_dir) if path.is_file() else name
        here, regrade = directory if manifest else None, regrades.get(sha256(data))
        facts.append(PoolFacts(name=name, path=here, reference=reference, manifest=manifest, regrade=regrade))
    return facts


def _regrades(out_dir: Path) -> dict[str, PoolFacts]:
    """Return {hash of a pool: the first finished pool in OUT that grades its rollouts again}."""
    regrades: dict[str, PoolFacts] = {}
    for name in pool_names(out_dir):
        manifest = read_json(resolve_pool(name, out_dir) / MANIFEST_NAME)
        pool = PoolFacts(name=name, reference=name, manifest=manifest)
        regrades.setdefault(pool.said("regraded_from.sha256"), pool)
    return regrades


Place = tuple[str, int, int]  # of a rollout: pool, step, sample


def read_pools(run: Run) -> tuple[dict[Place, Rollout], dict[str, str]]:
    """Return ({place: rollout}, {unreadable pool: reason}) for the pools named by the run's samples."""
    stored: dict[Place, Rollout] = {}
    why = dict.fromkeys((sample.src_pool for sample in run.samples), "The run does not say where it is.")
    for pool in pool_facts(run):
        why[pool.name] = "It is not there, or not as the run read it."
        if pool.path is None:
            continue
        try:
            # Read a pool whole before keeping any of it: a damaged file excludes all of its pool.
            rollouts = [rollout for group in open_pool(pool.path).steps for rollout in group]
        except InputError as error:
            why[pool.name] = str(error)
            continue
        del why[pool.name]
        stored |= {(pool.name, rollout.step, rollout.sample_id): rollout for rollout in rollouts}
    return stored, dict(sorted(why.items()))


def other_base(model: str | None, manifest: Mapping[str, Any], weights: str | None = None) -> list[str]:
    """Warn if another base model sampled a pool, by the hash of its weights, else by name if known."""
    policy = manifest.get("policy") or {}
    sampled_by, recorded = policy.get("base_model"), policy.get("base_weights_sha256")
    is_same = recorded == (weights or recorded) if recorded else sampled_by == model
    if None in (sampled_by, model) or is_same:
        return []
    return [f"caution: sampled by {sampled_by}, replayed on {model}: an update that neither of them would make"]


def other_scale(scale: str | None, manifest: Mapping[str, Any]) -> list[str]:
    """Warn if the log and the replay divide advantages by different scales."""
    logged = (manifest.get("log") or {}).get("scale_rewards")
    if None in (logged, scale) or logged == scale:
        return []
    fix = f"--set objective.scale_rewards={logged}"
    return [f"caution: its trainer's advantages are of scale_rewards {logged}, those of the replay of {scale} ({fix})"]


def doubts(run: Run, pools: Sequence[PoolFacts]) -> list[str]:
    """List doubts about the policy behind the rollouts that limit a verdict, a sentence each; empty for a training."""
    if run.settings.verb == "train":
        return []
    sentences, circular = [], run.config.get("circular") or {}
    if v_hack := circular.get("unknown"):
        sentences.append(f"whether pairs of {v_hack} are rollouts of these pools is not known: they are not at hand")
    elif circular:
        sentences.append(
            f"{circular['pairs']} of {circular['of_pairs']} pairs are rollouts of these pools: their "
            f"{len(circular['problems'])} prompts of {circular['of_problems']} were left out"
        )
    for pool in pools:
        cautions = other_base(run.config.get("model"), pool.manifest, run.config.get("base_weights_sha256"))
        cautions = [*(cautions or _other_adapter(run, pool)), *_moved(run, pool)]
        cautions += other_scale(run.settings.objective.scale_rewards, pool.manifest)
        sentences += [f"pool {pool.name}: {caution.removeprefix(CAUTION)}" for caution in cautions]
    return sentences


def _other_adapter(run: Run, pool: PoolFacts) -> list[str]:
    """Warn if the sampling adapter differs from the adapter where the gradient is taken."""
    adapters = pool.said("policy.adapter"), run.settings.model.adapter
    # Another program's log does not record its adapter: `_moved` compares its log-probabilities.
    if adapters[0] == adapters[1] or pool.said("policy.base_model") is None or pool.said("log") is not None:
        return []
    sampled, taken = ("no adapter" if adapter is None else f"adapter {adapter}" for adapter in adapters)
    fix = shlex.join(["--set", f"model.adapter={setting_text(adapters[0])}"])
    differs = "alignment can differ at the weights that sampled"
    return [f"sampled with {sampled}, but the gradient is taken with {taken}; {differs} ({fix})"]


def _moved(run: Run, pool: PoolFacts) -> list[str]:
    """Warn if weights other than the model's sampled a log, judged from log-probabilities, else from steps."""
    trained, mapping = pool.said("log.training_steps") or [], pool.said("log.mapping") or {}
    if pool.path is None or not ("logprobs" in mapping or len({*trained}) > 1):
        return []
    samples = [row for row in run.samples if row.src_pool == pool.name]
    stored, unread = read_pools(replace(run, samples=samples))
    if pool.name in unread:
        return [f"its files cannot be read ({unread[pool.name]}), which say whose weights sampled it"]
    groups = dict.fromkeys(step for name, step, _ in stored if name == pool.name)
    step_of = dict(zip(groups, trained, strict=False))
    gaps: dict[int | None, list[float]] = {}  # {training step: nats per token}
    for (step, number), nll in {(row.src_step, row.src_sample): row.nll for row in samples}.items():
        of_step, rollout = gaps.setdefault(step_of.get(step), []), stored.get((pool.name, step, number))
        if nll is not None and rollout is not None and rollout.sampling_logprobs:
            of_step.append(abs(nll + fmean(rollout.sampling_logprobs)))
    steps = sorted(step for step in gaps if step is not None)
    off = sorted((fmean(values), step) for step, values in gaps.items() if values)
    if not off:
        moved = "of a training, whose weights moved in between; no log-probability says how far"
        return [f"steps {steps[0]} to {steps[-1]} {moved} ({ONLY_STEP} {steps[0]})"] if len(steps) > 1 else []
    mean = fmean(chain.from_iterable(gaps.values()))
    if mean < SAME_WEIGHTS:
        return []
    ends = ", ".join(f"{nats:.2g} in step {step}" for nats, step in (off[0], off[-1]))
    apart = f" ({ends}: {ONLY_STEP})" if len(off) > 1 else ""
    return [f"logged log-probabilities are {mean:.2g} nats a token off the model's: other weights sampled it{apart}"]


def environment_of(plan: Mapping[str, Any]) -> str | None:
    """Return the environment that a pool's plan names with a mode; another program's log may name none, or several."""
    return plan["env"] if isinstance(plan.get("env"), str) and isinstance(plan.get("mode"), str) else None


def regrade_command(pool: PoolFacts, out: Path) -> str:
    """Return the command that grades a pool again, under another name, in a root folder.

    A log may lack the mode (MODE) and its problems (PROBLEMS.jsonl).
    """
    command = shlex.join(["probe", "pool", "regrade", pool.reference, "--name", f"{pool.name}-again"])
    command += " --mode MODE" * (UNKNOWN in (pool.said("plan.env_mode") or ()))
    # An imported log lists the environments of its rows: the problems of minicode alone need no file.
    has_problems = isinstance(pool.said("plan.env"), str) or pool.said("plan.env") == ["minicode"]
    return command + " --problems PROBLEMS.jsonl" * (not has_problems) + elsewhere(out)


def as_sampled(builtin: str) -> dict[str, Any]:
    """Return the settings that replay whole groups of a bundled pool at the weights that sampled it."""
    manifest = open_pool(BUILTIN / builtin).manifest
    return {"source.per_pool": manifest["plan"]["group"], "model.adapter": manifest["policy"]["adapter"]}
