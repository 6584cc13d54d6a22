"""The inputs of a replay, checked before the weights are loaded: pools, groups, pairs and model.

Everything that affects the numbers is resolved here and recorded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from extraction.directions import load_directions
from extraction.library import check_pairs
from extraction.pairs import Pair, is_builtin, load_pairs, pairs_sha, selected_pairs, text_of
from probe.analysis.verdict.pools import other_base, other_scale
from probe.runs.inputs import Inputs, with_divisor
from probe.settings.loss import check_recorded
from probe.settings.rollouts import SourceConfig
from probe.settings.training import ModelConfig
from probe.settings.verbs import ReplayConfig
from probe.step.distributed import SOLO, World
from probe.step.groups import ReplaySource
from replay_pools.base.errors import InputError, refuse
from replay_pools.policy.chat import id_faults
from replay_pools.policy.load import Policy, load_served_policy
from replay_pools.pool import BUILTIN, Pool, open_pool, resolve_pool
from replay_pools.rollout import Rollout


class ReplayInputs(Inputs[ReplayConfig]):
    """The pools of `source.replay_dirs`, in that order, and the policy of a replay.

    The divisor of dr_grpo is by default the largest `max_new_tokens` of the pools' samplers; None if none is recorded.

    After `groups`, `circular` says which pairs are rollouts of these pools, and which `problems` they exclude; empty if
    there are none. Only `unknown` if the pairs of a direction file are missing.

    Raises:
        InputError: no such pool, or one in a format that cannot be read.
    """

    def __init__(
        self, config: ReplayConfig, out_dir: Path, say: Callable[[str], None] = lambda text: None, world: World = SOLO
    ) -> None:
        super().__init__(config, out_dir, say, world)
        self.circular: dict[str, Any] = {}
        paths = [resolve_pool(name, out_dir) for name in config.source.replay_dirs]
        self.pools = [_of_steps(open_pool(path), config.source) for path in paths]
        for pool in self.pools:
            if pool.path.parent != BUILTIN:
                say(f"pool {pool.name}: {pool.path}")
            self._say_of(pool, pool.cautions)
        limits = [(pool.manifest.get("sampler") or {}).get("max_new_tokens") for pool in self.pools]
        self.config = with_divisor(config, max((limit for limit in limits if limit is not None), default=None))

    def _say_of(self, pool: Pool, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self.say(f"pool {pool.name}: {sentence}")

    def check(self, policy: Policy) -> None:
        """Refuse a pool of other weights with that name, and pools of which these weights wrote none.

        As in a training, pools of another model, such as a teacher's, are accepted with at least one of this model.
        """
        weights = policy.base_weights_sha
        has_own = any(pool.manifest["policy"].get("base_weights_sha256") in (None, weights) for pool in self.pools)
        for pool in self.pools:
            stored = pool.manifest["policy"]
            if not has_own or stored.get("base_model") == policy.base_model:
                _check_hash(pool, "base_weights_sha256", weights, policy.base_model)
            else:
                self._say_of(pool, other_base(policy.base_model, pool.manifest, weights))

    def work(self) -> dict[str, int]:
        """As in `Inputs`, of all arms and loss variants."""
        num_steps, config = self.groups().num_steps, self.config
        work = {"steps": num_steps, "rollouts": num_steps * config.source.per_pool * len(self.pools)}
        return work | {"cells (arms x conditions)": len(config.intervention.arms) * len(config.objectives())}

    def groups(self) -> ReplaySource:
        """The groups of the run; pools and pairs are checked against the model and the objectives, without weights.

        Raises:
            InputError: pools that do not match or have another tokenizer; circular pairs that leave nothing; recorded
                log-probabilities that an objective needs and that are not of the policy's own distribution; all faults
                of the pairs.
        """
        config, source, pools = self.config, self.config.source, self._measured_on()
        groups = ReplaySource(pools, per_pool=source.per_pool, match=source.match, steps=config.steps, seed=config.seed)
        name = str(self.model.name)
        chat = load_served_policy(name, config.model.template)
        for pool in map(groups.drawn, pools):
            _check_hash(pool, "tokenizer_sha256", chat.tokenizer_sha(), name)
            # An id beyond the embedding would fail inside a forward pass without naming the rollout.
            refuse(id_faults(chat, pool))
            scale = config.objectives()[config.primary].scale_rewards
            self._say_of(pool, other_scale(scale, pool.manifest))
        extraction = config.intervention.extraction
        if config.intervention.v_hack is None:
            check_pairs(chat, selected_pairs(extraction), extraction.k)
        check_recorded(
            config.objectives().values(), {f"pool {pool.name}": pool.manifest["sampler"] for pool in self.pools}
        )
        return groups

    @property
    def model(self) -> ModelConfig:
        """The table `model`, by default of the base model that all pools name."""
        model, names = self.config.model, {pool.manifest["policy"].get("base_model") for pool in self.pools}
        if model.name is None and (len(names) != 1 or None in names):
            listed = ", ".join(sorted(map(str, names)))
            raise InputError("--model", expected="one base model named by all pools", found=listed, fix="pass --model")
        return model if model.name is not None else replace(model, name=str(names.pop()))

    def _measured_on(self) -> list[Pool]:
        """Return the pools without the prompts of circular pairs."""
        pairs, v_hack = self._pairs(), self.config.intervention.v_hack
        if pairs is None:
            why = "they are not at hand as they were (probe replay --pairs takes them)"
            self.say(f"caution: pairs of {v_hack}: whether they are rollouts of these pools is not known: {why}")
            self.circular = {"unknown": v_hack}
        groups = [group for pool in self.pools for group in pool.steps]
        if not (taken := taken_pairs(pairs or (), chain.from_iterable(groups))):
            return [*self.pools]
        problems, everywhere = {*chain.from_iterable(taken.values())}, {group[0].problem_id for group in groups}
        copies = f"{len(taken)} of {len(pairs or ())} pairs are rollouts of these pools"
        if everywhere <= problems:
            fix = "probe pool draft takes pairs from half of the prompts, and leaves the others to the replay"
            raise InputError("pairs", expected="pairs that leave prompts to measure on", found=copies, fix=fix)
        counts = {"pairs": len(taken), "of_pairs": len(pairs or ())}
        self.circular = {**counts, "problems": sorted(problems), "of_problems": len(everywhere)}
        self.say(f"caution: {copies}: their {len(problems)} prompts of {len(everywhere)} are left out of the replay")
        return [
            pool.only([place for place, group in enumerate(pool.steps) if group[0].problem_id not in problems])
            for pool in self.pools
        ]

    def _pairs(self) -> list[Pair] | None:
        """Return the pairs of v_hack; None if it is a file and its pairs have changed or are missing."""
        extraction, v_hack = self.config.intervention.extraction, self.config.intervention.v_hack
        if v_hack is None:
            return selected_pairs(extraction)
        metadata = load_directions(Path(v_hack)).metadata
        if is_builtin(metadata["pairs"]):
            return load_pairs(metadata["pairs"])
        try:
            pairs = selected_pairs(replace(extraction, pairs=metadata["pairs"]))
        except InputError:
            return None
        return pairs if pairs_sha(pairs) == metadata["pairs_sha256"] else None

    def record(self) -> dict[str, Any]:
        """As in `Inputs`, with `circular`."""
        return super().record() | ({"circular": self.circular} if self.circular else {})


def taken_pairs(pairs: Sequence[Pair], rollouts: Iterable[Rollout]) -> dict[int, set[str]]:
    """Return {position of a pair taken from the rollouts: problem ids of its copies}.

    A copy has the text of a side of the pair, up to case and white space, and the same prompt, or one that contains
    it. Such a pair would be measured on itself.
    """
    positions: dict[str, set[int]] = {}
    for i, pair in enumerate(pairs):
        for side in (pair.hack, pair.clean):
            positions.setdefault(_folded(text_of(side)), set()).add(i)
    tasks = [_folded(pair.messages[-1]["content"]) for pair in pairs]
    taken: dict[int, set[str]] = {}
    for rollout in rollouts:
        for i in positions.get(_folded(rollout.written), ()):
            task = _folded(rollout.messages[-1]["content"])
            if task in tasks[i] or tasks[i] in task:
                taken.setdefault(i, set()).add(rollout.problem_id)
    return taken


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _of_steps(pool: Pool, source: SourceConfig) -> Pool:
    """Return the pool with only the groups of `source.only_step`.

    Raises:
        InputError: the pool's log has no training steps, or none of these.
    """
    wanted = source.only_steps()
    if wanted is None:
        return pool
    trained = (pool.manifest.get("log") or {}).get("training_steps") or ()
    chosen = [place for place, step in enumerate(trained) if any(step in span for span in wanted)]
    if not chosen:
        logged = f", {min(trained)} to {max(trained)}" if trained else ""
        expected, fix = f"a step of pool {pool.name}{logged}", "" if trained else "--map step=COLUMN of the import"
        found = str(source.only_step) if trained else "none logged"
        raise InputError("--only-step", expected=expected, found=found, fix=fix)
    return pool.only(chosen)


def _check_hash(pool: Pool, key: str, loaded: str, model: str) -> None:
    """Refuse a pool if its manifest has another hash of weights or tokenizer; accept a manifest without one."""
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
