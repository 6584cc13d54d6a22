"""The inputs of a replay, checked before the weights are loaded: pools, groups, pairs and model.

Everything that affects the numbers is resolved here and recorded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from extraction.directions import load_directions
from extraction.library import check_pairs
from extraction.pairs import Pair, is_builtin, load_pairs, pairs_sha, selected_pairs, text_of
from probe.analysis.verdict.pools import other_base, other_scale
from probe.runs.inputs import Inputs, with_divisor
from probe.settings.loss import check_recorded
from probe.settings.rollouts import SourceConfig
from probe.settings.run import ReplayConfig
from probe.settings.training import ModelConfig
from probe.step.distributed import SOLO, World
from probe.step.groups import ReplaySource
from replay_pools.base.errors import InputError, refuse
from replay_pools.policy.load import Policy, load_served_policy
from replay_pools.pool import BUILTIN, Pool, open_pool, resolve_pool
from replay_pools.rollout import Rollout
from replay_pools.vocabulary import id_faults


class ReplayInputs(Inputs[ReplayConfig]):
    """The pools of `source.replay_dirs`, in that order, and the policy of a replay.

    The divisor of dr_grpo is by default the largest `max_new_tokens` of the pools' samplers; None if none is recorded.

    Raises:
        InputError: no such pool, or one in a format that cannot be read.
    """

    def __init__(
        self, config: ReplayConfig, out_dir: Path, say: Callable[[str], None] = lambda text: None, world: World = SOLO
    ) -> None:
        super().__init__(config, out_dir, say, world)
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
        """Check the policy against every pool.

        As in a training, pools of another model, such as a teacher's, are accepted with at least one of this model.

        Raises:
            InputError: other weights of that name wrote a pool, or these weights wrote none.
        """
        weights = policy.base_weights_sha
        has_own = any(pool.manifest["policy"].get("base_weights_sha256") in (None, weights) for pool in self.pools)
        for pool in self.pools:
            stored = pool.manifest["policy"]
            if not has_own or stored.get("base_model") == policy.base_model:
                _check_hash(pool, "base_weights_sha256", weights, policy.base_model)
            else:
                self._say_of(pool, other_base(policy.base_model, pool.manifest, weights))

    def groups(self) -> ReplaySource:
        """The groups of the run; pools and pairs are checked against the model and the objectives, without weights.

        Raises:
            InputError: pools that do not match or have another tokenizer; recorded log-probabilities that an objective
                needs and that are not of the policy's own distribution; all faults of the pairs.
        """
        config, (groups, pools, _) = self.config, self._drawn
        name = str(self.model.name)
        chat = load_served_policy(name, config.model.template)
        drawn = [groups.drawn(pool) for pool in pools]
        for pool in drawn:
            _check_hash(pool, "tokenizer_sha256", chat.tokenizer_sha(), name)
            # An id beyond the embedding would fail inside a forward pass without naming the rollout.
            refuse(id_faults(chat, pool))
            scale = config.objectives()[config.primary].scale_rewards
            self._say_of(pool, other_scale(scale, pool.manifest))
        if config.intervention.v_hack is None:
            pairs, k = selected_pairs(config.intervention.extraction), config.intervention.extraction.k
            check_pairs(chat, pairs, k)
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

    @property
    def circular(self) -> dict[str, Any]:
        """Pairs taken from these pools: their number, `pairs`, and the excluded `problems`; empty if there are none.

        Only `unknown` if the pairs of a direction file are missing. Errors as in `groups`.
        """
        return self._drawn[2]

    @cached_property
    def _drawn(self) -> tuple[ReplaySource, list[Pool], dict[str, Any]]:
        """Return the groups, their pools without circular pairs, and `circular`.

        Raises:
            InputError: circular pairs that leave nothing, and as in ReplaySource.
        """
        config, pairs, pools, circular = self.config, self._pairs(), [*self.pools], dict[str, Any]()
        if pairs is None:
            v_hack = config.intervention.v_hack
            why = "they are not at hand as they were (probe replay --pairs takes them)"
            self.say(f"caution: pairs of {v_hack}: whether they are rollouts of these pools is not known: {why}")
            circular = {"unknown": v_hack}
        elif taken := taken_pairs(pairs, (rollout for pool in pools for group in pool.steps for rollout in group)):
            problems = sorted(set[str]().union(*taken.values()))
            everywhere = {group[0].problem_id for pool in pools for group in pool.steps}
            circular = {"pairs": len(taken), "of_pairs": len(pairs), "problems": problems}
            circular |= {"of_problems": len(everywhere)}
            copies = f"{len(taken)} of {len(pairs)} pairs are rollouts of these pools"
            if everywhere <= {*problems}:
                fix = "probe pool draft takes pairs from half of the prompts, and leaves the others to the replay"
                raise InputError("pairs", expected="pairs that leave prompts to measure on", found=copies, fix=fix)
            pools = [
                pool.only([place for place, group in enumerate(pool.steps) if group[0].problem_id not in problems])
                for pool in pools
            ]
            prompts = f"their {len(problems)} prompts of {len(everywhere)}"
            self.say(f"caution: {copies}: {prompts} are left out of the replay")
        per_pool, match = config.source.per_pool, config.source.match
        groups = ReplaySource(pools, per_pool=per_pool, match=match, steps=config.steps, seed=config.seed)
        return groups, pools, circular

    def _pairs(self) -> list[Pair] | None:
        """Return the pairs of v_hack; None if it is a file and its pairs have changed or are missing."""
        intervention = self.config.intervention
        extraction = intervention.extraction
        if intervention.v_hack is None:
            return selected_pairs(extraction)
        metadata = load_directions(Path(intervention.v_hack)).metadata
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
    trained = (pool.manifest.get("log") or {}).get("training_steps")
    if not trained:
        expected = f"a step of the training that pool {pool.name} is the log of"
        raise InputError("--only-step", expected=expected, found="none logged", fix="--map step=COLUMN of the import")
    chosen = [place for place, step in enumerate(trained) if any(step in span for span in wanted)]
    if not chosen:
        expected = f"a step of pool {pool.name}, {min(trained)} to {max(trained)}"
        raise InputError("--only-step", expected=expected, found=str(source.only_step))
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
