"""Where the pools of a run come from: how they were sampled and graded, and which others another replay could read."""

import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from probe.records.run import OWN_POOLS, Run, elsewhere, out_of
from probe.settings.presets import configure, setting_text
from replay_pools.base.errors import InputError
from replay_pools.base.files import SEAL, dump_json, parse_json, read_json, read_plain, sha256
from replay_pools.grading.blocks import default_rule
from replay_pools.pool import BUILTIN, CAUTION, MANIFEST_NAME, open_pool, pool_names, pool_reference, resolve_pool
from replay_pools.rollout import UNKNOWN, Rollout

# Nats a token between logged log-probabilities and the model's from which on other weights are said to have sampled:
# provisional; rounding to bfloat16 leaves less than a fifth of it.
OFF_POLICY = 0.05
ONLY_STEP = "probe replay --only-step"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """A pool that a run read or wrote, as its manifest describes it."""

    name: str
    path: Path | None = None  # None: it is not there, or not that of the run
    reference: str  # what a command calls it: its name, or its path where the name does not find it
    manifest: Mapping[str, Any] = field(default_factory=dict)  # empty: it is not there, or not that of the run
    again: str = ""  # what a regrade of it is called
    regrade: "PoolFacts | None" = None  # a pool in OUT that grades its rollouts again

    def said(self, key: str) -> Any:
        """A value of the manifest by its key with dots; None where it says nothing."""
        value: Any = self.manifest
        for part in key.split("."):
            value = (value or {}).get(part)
        return value

    @property
    def hint(self) -> bool | None:
        """Whether its prompts tell how submissions are evaluated; None of a log, which has both kinds."""
        return self.said("plan.hint") if isinstance(self.said("plan.hint"), bool) else None

    @property
    def policy(self) -> tuple[Any, ...]:
        """Model and adapter that sampled it."""
        return self.said("policy.base_model"), self.said("policy.adapter")

    @property
    def problems(self) -> tuple[Any, ...] | None:
        """Environment, split, mode, number of steps and seed; None of a log, whose problems have names alone."""
        known = tuple(self.said(f"plan.{key}") for key in ("env", "split", "mode", "steps", "seed"))
        return None if None in known else known

    @property
    def has_mode(self) -> bool:
        """Whether it records the loophole modes of its rollouts."""
        return UNKNOWN not in (self.said("plan.env_mode") or ())

    @property
    def env(self) -> str | None:
        """Of its problems; None where `probe train` cannot sample them."""
        return environment_of(self.said("plan") or {})

    @property
    def recipe(self) -> str | None:
        """Options of `probe pool generate` that make it, but for --steps, --group and --name."""
        # Logs of another program have no recipe, nor have the rollouts of a policy that moved.
        has_recipe = self.said("plan.steps_per_batch") is not None and self.name not in OWN_POOLS
        return _recipe(self.manifest) if has_recipe else None


def pool_facts(run: Run) -> list[PoolFacts]:
    """The pools of a run: of a training run its own rollouts first, then its teacher's.

    Nothing is known of a pool that was moved or changed since: its manifest is not the one that this run read.
    """
    facts = []
    for name in OWN_POOLS:
        manifest_sha256 = run.manifest.get("files", {}).get(f"{name}/{MANIFEST_NAME}")
        if manifest_sha256:
            facts.append(_facts(run, name, run.path / name, manifest_sha256, f"{run.path.resolve().name}-{name}-again"))
    for pool in run.config.get("pools", ()):
        name = pool["name"]
        facts.append(_facts(run, name, Path(pool["path"]), pool["manifest_sha256"], f"{name}-again"))
    return facts


def _facts(run: Run, name: str, directory: Path, expected: str, again: str) -> PoolFacts:
    """Return what the manifest in `directory` says if its hash is `expected`, and the pool in OUT that regrades it."""
    if not directory.exists() and (BUILTIN / name).is_dir():
        directory = BUILTIN / name  # a built-in pool moves with the installation
    path, out_dir = directory / MANIFEST_NAME, out_of(run.path)
    data = read_plain(path) if path.is_file() else b"{}"
    manifest = {key: value for key, value in parse_json(data, path).items() if key != SEAL}
    # A run's manifest hashes the bytes of its files, its config the JSON of a pool (`Pool.identity`).
    if expected not in (sha256(data), sha256(dump_json(manifest))):
        manifest = {}
    # Of a pool that was moved the name may find a copy; its old path finds nothing.
    reference = pool_reference(directory, out_dir) if path.is_file() else name
    regrade = next((pool for pool in pools_at_hand(run) if pool.said("regraded_from.sha256") == sha256(data)), None)
    here = directory if manifest else None
    return PoolFacts(name=name, path=here, reference=reference, manifest=manifest, again=again, regrade=regrade)


Place = tuple[str, int, int]  # of a rollout: pool, step, sample


def read_pools(run: Run) -> tuple[dict[Place, Rollout], dict[str, str]]:
    """Return ({place: rollout}, {pool that cannot be read: why}), of the pools that the run's samples name."""
    stored: dict[Place, Rollout] = {}
    why = dict.fromkeys((sample.src_pool for sample in run.samples), "The run does not say where it is.")
    for pool in pool_facts(run):
        why[pool.name] = "It is not there, or not as the run read it."
        if pool.path is None:
            continue
        try:
            # A pool is read whole before any of it is kept: a damaged file leaves out all of its pool.
            rollouts = [rollout for group in open_pool(pool.path).steps for rollout in group]
        except InputError as error:
            why[pool.name] = str(error)
            continue
        del why[pool.name]
        stored |= {(pool.name, rollout.step, rollout.sample_id): rollout for rollout in rollouts}
    return stored, dict(sorted(why.items()))


def pools_at_hand(run: Run) -> list[PoolFacts]:
    """Every finished pool in OUT/pools of the run, and every built-in one."""
    out_dir = out_of(run.path)
    facts = []
    for name in pool_names(out_dir):
        path = resolve_pool(name, out_dir) / MANIFEST_NAME
        facts.append(PoolFacts(name=name, reference=name, manifest=read_json(path)))
    return facts


def partner(run: Run, pool: PoolFacts, read: Container[str]) -> PoolFacts | None:
    """A pool at hand in which another policy of the same base model answers the problems of `pool`; none of a log."""
    if pool.problems is None:
        return None
    for other in pools_at_hand(run):
        is_same = (other.hint, other.problems, other.policy[0]) == (pool.hint, pool.problems, pool.policy[0])
        is_of_model = run.config.get("model") in (None, other.policy[0])
        if is_same and is_of_model and other.policy != pool.policy and other.name not in read:
            return other
    return None


def other_base(model: str | None, manifest: Mapping[str, Any], weights: str | None = None) -> list[str]:
    """A caution where another base model sampled a pool: by the hash of its weights, else by name, as far as known."""
    policy = manifest.get("policy") or {}
    sampled_by, recorded = policy.get("base_model"), policy.get("base_weights_sha256")
    is_same = recorded == (weights or recorded) if recorded else sampled_by == model
    if None in (sampled_by, model) or is_same:
        return []
    return [f"caution: sampled by {sampled_by}, replayed on {model}: an update that neither of them would make"]


def other_scale(scale: str | None, manifest: Mapping[str, Any]) -> list[str]:
    """A caution where the advantages of a log were divided by something else than those of the replay."""
    logged = (manifest.get("log") or {}).get("scale_rewards")
    if None in (logged, scale) or logged == scale:
        return []
    fix = f"--set objective.scale_rewards={logged}"
    return [f"caution: its trainer's advantages are of scale_rewards {logged}, those of the replay of {scale} ({fix})"]


def doubts(run: Run, pools: Sequence[PoolFacts]) -> list[str]:
    """Whose rollouts they are, as far as that limits a verdict, a sentence each; none of a training."""
    if run.verb == "train":
        return []
    sentences = []
    circular = run.config.get("circular") or {}
    if v_hack := circular.get("unknown"):
        sentences.append(f"whether pairs of {v_hack} are rollouts of these pools is not known: they are not at hand")
    elif circular:
        sentences.append(
            f"{circular['pairs']} of {circular['of_pairs']} pairs are rollouts of these pools: their "
            f"{len(circular['problems'])} prompts of {circular['of_problems']} were left out"
        )
    model, weights = run.config.get("model"), run.config.get("base_weights_sha256")
    for pool in pools:
        other = other_base(model, pool.manifest, weights)
        cautions = [*(other or _other_adapter(run, pool)), *_moved(run, pool)]
        cautions += other_scale((run.settings.get("objective") or {}).get("scale_rewards"), pool.manifest)
        sentences += [f"pool {pool.name}: {caution.removeprefix(CAUTION)}" for caution in cautions]
    return sentences


def _other_adapter(run: Run, pool: PoolFacts) -> list[str]:
    """A caution where the policy had another adapter when it sampled the pool than where the gradient is taken."""
    sampled_with, taken_with = pool.said("policy.adapter"), (run.settings.get("model") or {}).get("adapter")
    # The log of another program does not say its adapter: `_moved` compares its log-probabilities.
    if sampled_with == taken_with or pool.said("policy.base_model") is None or pool.said("log") is not None:
        return []
    named = {None: "no adapter"}
    sampled = named.get(sampled_with, f"adapter {sampled_with}")
    fix = f"--set {shlex.quote(f'model.adapter={setting_text(sampled_with)}')}"
    return [
        f"sampled with {sampled}, but the gradient is taken with {named.get(taken_with, f'adapter {taken_with}')}; "
        f"alignment can differ at the weights that sampled ({fix})"
    ]


def _moved(run: Run, pool: PoolFacts) -> list[str]:
    """A caution where other weights than the model's sampled a log: as its log-probabilities say, else by its steps."""
    trained, mapping = pool.said("log.training_steps") or [], pool.said("log.mapping") or {}
    if pool.path is None or not ("logprobs" in mapping or len({*trained}) > 1):
        return []
    try:
        stored = open_pool(pool.path).steps
    except InputError as error:
        return [f"its files cannot be read ({error.found}), which say whose weights sampled it"]
    step_of = dict(zip((group[0].step for group in stored), trained, strict=False))
    logged = {(each.step, each.sample_id): each.sampling_logprobs for group in stored for each in group}
    nlls = {(row.src_step, row.src_sample): row.nll for row in run.samples if row.src_pool == pool.name}
    gaps: dict[int | None, list[float]] = {}  # {step of the training: nats a token}
    for place, nll in nlls.items():
        of_step = gaps.setdefault(step_of.get(place[0]), [])
        if nll is not None and (logprobs := logged.get(place)):
            of_step.append(abs(nll + fmean(logprobs)))
    steps = sorted(step for step in gaps if step is not None)
    off = {step: fmean(values) for step, values in gaps.items() if values}
    if not off:
        moved = "of a training, whose weights moved in between; no log-probability says how far"
        return [f"steps {steps[0]} to {steps[-1]} {moved} ({ONLY_STEP} {steps[0]})"] if len(steps) > 1 else []
    mean = fmean(chain.from_iterable(gaps.values()))
    if mean < OFF_POLICY:
        return []
    sentence = f"logged log-probabilities are {mean:.2g} nats a token off the model's: other weights sampled it"
    if len(off) > 1:
        nearest = min(off, key=off.__getitem__)
        farthest = max(off, key=off.__getitem__)
        sentence += f" ({off[nearest]:.2g} in step {nearest}, {off[farthest]:.2g} in step {farthest}: {ONLY_STEP})"
    return [sentence]


def environment_of(plan: Mapping[str, Any]) -> str | None:
    """The environment that a pool's plan names with a mode; the log of another program may name none, or several."""
    return plan["env"] if isinstance(plan.get("env"), str) and isinstance(plan.get("mode"), str) else None


def num_problems(pool: PoolFacts) -> int | None:
    """How many problems the environment of a pool has in its split; None where it has none, or its files are gone."""
    if pool.env is None or pool.said("plan.split") is None:
        return None
    # Imported here: only this advice needs the parsers of problems.
    from replay_pools.environments.registry import get_environment

    try:
        return len(get_environment(pool.env).problems(pool.said("plan.split")))  # pyright: ignore[reportArgumentType]
    except InputError:
        return None


def _recipe(manifest: Mapping[str, Any]) -> str:
    """The options of `probe pool generate`, where they are not its defaults, that sampled a pool.

    No pool says where its server was: the reader puts the address in the place of URL.
    """
    plan, policy, sampler, grader = (manifest[part] for part in ("plan", "policy", "sampler", "grader"))
    usual = configure("generate")
    is_served, rollouts = "engine" in manifest, usual.rollouts
    # {setting: (of the pool, the default)}; None: the pool does not record it, as a server's precision.
    settings = {
        "model.name": (policy["base_model"], usual.model.name),
        "rollouts.served_model" if is_served else "model.adapter": (policy["adapter"], None),
        "model.dtype": (policy.get("dtype"), usual.model.dtype),
        "seed": (plan["seed"], usual.seed),
        "rollouts.engine": ("server" if is_served else None, None),
        "rollouts.code_rule": (grader.get("code_rule"), default_rule(plan["env"])),
        "rollouts.cpu_limit": (grader.get("cpu_s"), rollouts.cpu_limit),
    }
    settings |= {f"rollouts.{key}": (plan[key], getattr(rollouts, key)) for key in ("env", "split", "mode", "hint")}
    for key in ("temperature", "max_new_tokens", "top_p", "top_k"):
        settings[f"rollouts.sampler.{key}"] = (sampler.get(key), getattr(rollouts.sampler, key))
    options = ["--url URL"] * is_served
    for key, (value, default) in settings.items():
        if value not in (None, default):
            options.append(f"--set {shlex.quote(f'{key}={setting_text(value)}')}")
    return " ".join(options)


def regrade_command(pool: PoolFacts, out: Path | None = None) -> str:
    """Return the command that grades a pool again, under another name, in a root folder.

    A log may lack the mode (MODE) and its problems (PROBLEMS.jsonl).
    """
    command = shlex.join(["probe", "pool", "regrade", pool.reference, "--name", pool.again])
    command += " --mode MODE" * (not pool.has_mode)
    # An imported log lists the environments of its rows: the problems of minicode alone need no file.
    has_problems = isinstance(pool.said("plan.env"), str) or pool.said("plan.env") == ["minicode"]
    command += " --problems PROBLEMS.jsonl" * (not has_problems)
    return command + (elsewhere(out) if out is not None else "")
