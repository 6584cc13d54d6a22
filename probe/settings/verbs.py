"""The settings of a run: one class for each verb, built from shared tables. `config.json` of a run holds them all.

    ReplayConfig(optimizer=OptimizerConfig(lr=1e-3))                            a replay that trains on stored rollouts
    read_config({"verb": "replay", "source": {"per_pool": 2}}, "FILE")          a replay from a table of JSON or TOML

`probe.settings.presets.configure` builds one from a preset and `--set`. A setting is one field: its type and limits
are checked, and its description is the help text and the row in `probe settings`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.dataclasses import dataclass

from extraction.settings import Normaliser, resolve_directions
from probe.settings.arms import ARMS
from probe.settings.loss import LossCondition, LossSettings
from probe.settings.remedy import RemedyConfig
from probe.settings.rollouts import RolloutConfig, SourceConfig
from probe.settings.training import (
    CheckpointConfig,
    ControlConfig,
    EvaluationConfig,
    InterventionConfig,
    LookaheadConfig,
    ModelConfig,
    OptimizerConfig,
)
from probe.settings.words import DEFAULT_CONDITION, PLANNING_PHRASES, Verb
from replay_pools.base.errors import InputError, refuse
from replay_pools.base.tables import STRICT, Maybe, decode, field_of, keys_of, setting
from replay_pools.pool import PLAIN_LAW, law_of
from replay_pools.rollout import REWARD_RANGE

MAX_SHOWN_ITEMS = 6  # a longer default is shown by its length
Check = tuple[object, str, str, object]  # (is it wrong, setting, expected, found)
KINDS: dict[Any, str] = {bool: "true, false", int: "whole number", float: "number", str: "text"}


def field_errors(*checks: Check) -> Iterator[InputError]:
    """Yield the errors of the checks (is it wrong, setting, expected, found) that fail."""
    for is_wrong, key, expected, found in checks:
        if is_wrong:
            yield InputError(key, expected=expected, found=str(found))


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class RunConfig:
    """Settings of every run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    seed: int = setting(0, "random seed of problems, rollouts, sampling and random controls")
    preregistered: Maybe[str] = None  # NAME@SHA256 of the spec; a sweep sets it

    def __post_init__(self) -> None:
        """Refuse contradicting settings, all in one error."""
        refuse([*field_errors(*self._checks())])

    def _checks(self) -> Iterator[Check]:
        """Yield what contradicts: (is it wrong, setting, expected, found)."""
        yield self.model.name is None, "model.name", "a policy, such as organism or Qwen/Qwen3-4B", "none"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class StepConfig(RunConfig):
    """Settings that replays and trainings share: measured steps that may move weights."""

    objective: LossSettings = field(default_factory=LossSettings)
    conditions: tuple[LossCondition, ...] = setting(
        (), "loss variants of a replay, `[{name, changes}]`, measured on the same steps"
    )
    planning_phrases: tuple[str, ...] = setting(PLANNING_PHRASES, "phrases that mark planning tokens for token credit")
    intervention: InterventionConfig = field(default_factory=InterventionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    remedy: Maybe[RemedyConfig] = None
    control: ControlConfig = field(default_factory=ControlConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    token_attribution: Maybe[int] = setting(0, "number of initial steps that record token shares; none: all", ge=0)

    @property
    def trains(self) -> bool:
        """True if weights move."""
        return self.optimizer.lr > 0

    def objectives(self) -> dict[str, LossSettings]:
        """Return {loss variant: its loss}."""
        if not self.conditions:
            return {DEFAULT_CONDITION: self.objective}
        return {condition.name: condition.objective(self.objective) for condition in self.conditions}

    @property
    def primary(self) -> str:
        """The loss variant that represents the run: `default`, else the first."""
        names = list(self.objectives())
        return DEFAULT_CONDITION if DEFAULT_CONDITION in names else names[0]

    @property
    def reward_range(self) -> float:
        """Largest minus smallest reward that the loss can see, including a remedy's penalty."""
        return REWARD_RANGE + (0.0 if self.remedy is None else self.remedy.penalty)

    def _checks(self) -> Iterator[Check]:
        names, arms, control = [condition.name for condition in self.conditions], self.intervention.arms, self.control
        is_quarantined = self.remedy is not None and self.remedy.name == "quarantine"
        is_split = any(ARMS[name].quarantines for name in arms)
        is_odd = (is_quarantined and not is_split) or (is_split and self.trains and not is_quarantined)
        listed, expected = ", ".join(arms), "quarantine with the remedy quarantine, and only with it"
        yield len(set(names)) < len(names), "conditions", "distinct names", ", ".join(names)
        yield self.trains and len(arms) > 1, "intervention.arms", "one arm if weights move", listed
        yield self.trains and len(names) > 1, "conditions", "one loss variant if weights move", ", ".join(names)
        yield is_odd, "intervention.arms", expected, listed
        for name, objective in self.objectives().items():
            table = f"conditions.{name}" if self.conditions else "objective"
            scale, estimator, beta = objective.scale_rewards, objective.advantage_estimator, objective.beta
            divided = f"none with {estimator}: only grpo's advantages are divided"
            cancels = "batch with reward surprise: the expected reward cancels within a group"
            with_kl = "objective.reference as well: base, ema or recorded"
            is_surprising = objective.reward == "surprise"
            yield estimator != "grpo" and scale != "none", f"{table}.scale_rewards", divided, scale
            yield is_surprising and scale != "batch", f"{table}.scale_rewards", cancels, scale
            yield beta and not objective.reference, f"{table}.beta", with_kl, "none"
            never = self.trains and control.target_kl is not None
            bounds = f"beta_min {control.beta_min}, beta {beta}, beta_max {control.beta_max}"
            is_outside = never and not 0 < control.beta_min <= beta <= control.beta_max
            yield is_outside, "control.target_kl", "0 < beta_min <= objective.beta <= beta_max", bounds
            if self.remedy is not None:
                yield from self._remedy_checks(self.remedy, table, objective)

    @property
    def _has_strangers(self) -> bool:
        """True if another policy sampled some rollouts of the update."""
        return True

    def _remedy_checks(self, remedy: RemedyConfig, table: str, objective: LossSettings) -> Iterator[Check]:
        """Yield settings that compare an update under a remedy with numbers recorded without it."""
        traits, estimator, control, tokens = (
            remedy.traits,
            objective.advantage_estimator,
            self.control,
            self.token_attribution,
        )
        accepts = "reinforce with finetune-accepted: an accepted rollout has the advantage 1, another one 0"
        shares = f"0 with the remedy {remedy.name}: token shares need the stored prompts"
        kl = f"none, and beta_warmup_steps 0: with the remedy {remedy.name} the policy's KL is not measured"
        recorded = f"another value: log-probabilities were recorded without the remedy {remedy.name}"
        is_penalty, is_finetuning = traits.dose == "strength", remedy.name == "finetune-accepted"
        follows_kl = control.target_kl is not None or control.beta_warmup_steps
        # A policy that sampled under the remedy recorded its log-probabilities under it.
        is_other = remedy.is_off_policy or (traits.changes_prompts and self._has_strangers)
        where = f"{table}.advantage_estimator"
        yield is_penalty and estimator == "maxrl", where, "grpo with a penalty: maxrl needs rewards >= 0", "maxrl"
        yield is_finetuning and estimator != "reinforce", where, accepts, estimator
        yield traits.changes_prompts and tokens != 0, "token_attribution", shares, tokens
        yield remedy.is_off_policy and follows_kl, "control.target_kl", kl, control.target_kl
        for key in ("old_logprobs", "reference"):
            yield is_other and getattr(objective, key) == "recorded", f"{table}.{key}", recorded, "recorded"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ReplayConfig(StepConfig):
    """Settings of `probe replay`: stored rollouts through the training step."""

    verb: Literal["replay"] = "replay"
    source: SourceConfig = field(default_factory=SourceConfig)
    steps: Maybe[int] = setting(None, "groups to replay; none: all", ge=1)
    lookahead: Maybe[LookaheadConfig] = None

    def _checks(self) -> Iterator[Check]:
        yield from StepConfig._checks(self)
        moves = self.lookahead is not None and (self.trains or self.model.shard_base)
        is_surprise = any(objective.reward == "surprise" for objective in self.objectives().values())
        yield moves, "lookahead", "none if the replay trains or shards its base", "steps"
        yield is_surprise, "objective.reward", "paid, as only a training has expected rewards", "surprise"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class TrainConfig(StepConfig):
    """Settings of `probe train`: one arm on rollouts that the policy samples."""

    verb: Literal["train"] = "train"
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    steps: int = setting(..., "optimizer steps", ge=1)

    def _checks(self) -> Iterator[Check]:
        yield from RunConfig._checks(self)
        yield from StepConfig._checks(self)
        rollouts, remedy, law = self.rollouts, self.remedy, law_of(asdict(self.rollouts.sampler))
        earlier, group, iterations = rollouts.earlier_checkpoint, rollouts.group, rollouts.iterations
        other = "iterations" if iterations > 1 else "prefetch" if rollouts.prefetch else "earlier_checkpoint"
        is_other = iterations > 1 or rollouts.prefetch or earlier is not None
        ratio = f"recorded with rollouts.{other}: another policy sampled, so the ratio is not 1"
        reads = remedy is not None and remedy.traits.monitored and rollouts.prefetch
        ahead = f"0 with the remedy {remedy and remedy.name}: the monitor reads rollouts at the weights of their step"
        every = 0 if earlier is None else earlier.every
        yield not self.trains, "optimizer.lr", "above 0 in a training", f"{self.optimizer.lr:g}"
        yield law != PLAIN_LAW, "rollouts.sampler", f"{PLAIN_LAW}: the loss assumes the policy's own distribution", law
        yield is_other and self.objective.old_logprobs == "current", "objective.old_logprobs", ratio, "current"
        yield reads, "rollouts.prefetch", ahead, rollouts.prefetch
        yield group < 2, "rollouts.group", "at least 2, as the baseline is the mean of a group", group
        yield rollouts.split != "train", "rollouts.split", "train in a training", rollouts.split
        yield self.steps % iterations, "rollouts.iterations", f"a divisor of the {self.steps} steps", iterations
        yield every % iterations, "rollouts.earlier_checkpoint.every", "a multiple of iterations", every
        # The teacher's share may change in every step of its ramp.
        settled = 0 if rollouts.teacher is None else rollouts.teacher.settled
        steps = range(0, min(self.steps, settled + iterations), iterations)
        taken, step = max((sum(rollouts.counts(step)), -step) for step in steps)
        expected = "more rollouts than teacher and earlier_checkpoint take, so that the policy has one"
        yield taken >= group, "rollouts.group", expected, f"{taken} of {group} in step {-step}"

    @property
    def _has_strangers(self) -> bool:
        return self.rollouts.teacher is not None


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EvalConfig(RunConfig):
    """Settings of `probe policy eval`: rates of a policy on held-out problems."""

    verb: Literal["eval"] = "eval"
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class GenerateConfig(RunConfig):
    """Settings of `probe pool generate`: a pool sampled from a policy."""

    verb: Literal["generate"] = "generate"
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    steps: int = setting(..., "groups, one problem each", ge=1)


CONFIGS: dict[Verb, type[Any]] = {
    "replay": ReplayConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
    "generate": GenerateConfig,
}
NOT_SET = ("verb", "preregistered")  # users do not set these
KEYS = tuple(dict.fromkeys(key for kind in CONFIGS.values() for key in keys_of(kind) if key not in NOT_SET))


def read_config(table: Any, where: object) -> ReplayConfig | TrainConfig:
    """Read a replay or a training from a table of config.json; missing keys keep their defaults.

    Raises:
        InputError: an unknown key, a value of the wrong type, or contradicting settings.
    """
    verb = table.get("verb") if isinstance(table, Mapping) else None
    return decode(TrainConfig if verb == "train" else ReplayConfig, table, where, known=KEYS)


def with_direction_file(config: StepConfig, out: Path) -> Any:
    """Replace the name of a direction file with its path in `out`/directions; InputError if there is none."""
    if config.intervention.v_hack is None:
        return config
    v_hack = resolve_directions(config.intervention.v_hack, out)
    return replace(config, intervention=replace(config.intervention, v_hack=str(v_hack)))


def normaliser(objective: LossSettings) -> Normaliser:
    """Return the normaliser that the loss and the pair gradients share."""
    return Normaliser(loss_type=objective.loss_type, max_completion_length=objective.max_completion_length)


def setting_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield (key, type, default, meaning) of every setting, those of a table first.

    >>> next(setting_rows())[0]
    'model.name'
    """
    for key in sorted(KEYS, key=lambda key: "." not in key):
        kind = next(kind for kind in CONFIGS.values() if key in keys_of(kind))
        entry = field_of(kind, key)
        default = "required" if entry.is_required() else _value_text(entry.get_default(call_default_factory=True))
        yield key, _type_text(entry.annotation), default, entry.description or ""


def _type_text(hint: Any) -> str:
    """Describe a type in words; optional settings take `none`."""
    parts = get_args(hint)
    if NoneType in parts:
        return f"{', '.join(_type_text(part) for part in parts if part is not NoneType)}, or none"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{word}`" for word in parts)
    if get_origin(hint) is tuple:
        return "list of tables" if is_dataclass(parts[0]) else f"list of {_type_text(parts[0])}s"
    return KINDS.get(hint) or _type_text(parts[0])  # Annotated


def _value_text(value: Any) -> str:
    """Format a default as `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        items = ", ".join(f'"{item}"' for item in value)
        return f"[{items}]" if len(value) <= MAX_SHOWN_ITEMS else f"a list of {len(value)}"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
