"""`RunConfig`: all settings of one run, for `probe replay`, `train`, `eval` and `pool generate`.

    RunConfig(source=SourceConfig(), optimizer=OptimizerConfig(lr=1e-3))        a replay that trains on stored rollouts
    RunConfig.from_json({"verb": "replay", "source": {"per_pool": 2}}, "FILE")  the same from a table of JSON or TOML

It is frozen, and `config.json` of a run holds all of it:

    model ......... which policy, in which precision and basis
    source ........ stored rollouts (replay)          rollouts ...... sampled rollouts (train, eval, pool generate)
    objective ..... the loss; `conditions` are changes of it that one pass measures side by side
    intervention .. arms, gate, directions            remedy ........ what is done to sampled groups (train)
    optimizer ..... lr 0 leaves the weights frozen    control ....... what is adapted from step to step
    checkpoints ... when state is written             evaluation .... held-out problems

A table that the verb does not take is refused (`TABLES_OF`). `probe.settings.presets` builds a RunConfig from a preset
and `--set`. To add a setting: add the field to its table (in `probe.settings.model`, `rollouts`, `intervention`,
`remedy`, `training` or `loss`) with its default and a check in `__post_init__`, and read it where the run is assembled
(`probe.runs.assemble`).
"""

from dataclasses import dataclass, field, fields
from typing import Any

from extraction.words import Normaliser
from probe.settings.arms import measured_arm
from probe.settings.intervention import InterventionConfig
from probe.settings.loss import PLAIN_LAW, LossCondition, LossSettings, law_of
from probe.settings.model import ModelConfig
from probe.settings.ranges import at_least
from probe.settings.remedy import RemedyConfig
from probe.settings.rollouts import RolloutConfig, SourceConfig
from probe.settings.training import CheckpointConfig, ControlConfig, EvaluationConfig, OptimizerConfig
from probe.settings.words import DEFAULT_CONDITION, PLANNING_PHRASES, Verb
from replay_pools.errors import FieldError
from replay_pools.rollout import REWARD_RANGE
from replay_pools.storage.tables import decode, keys_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run. `dataclasses.asdict` writes it, `from_json` reads it back.

    >>> RunConfig(source=SourceConfig()).verb
    'replay'
    """

    verb: Verb = "replay"
    model: ModelConfig = field(default_factory=ModelConfig)
    source: SourceConfig | None = None  # of a replay
    rollouts: RolloutConfig | None = None  # of all but a replay
    objective: LossSettings = field(default_factory=LossSettings)
    conditions: tuple[LossCondition, ...] = ()  # of a replay; none = the objective alone, under the name `default`
    planning_phrases: tuple[str, ...] = PLANNING_PHRASES  # what token credit calls planning
    intervention: InterventionConfig = field(default_factory=InterventionConfig)
    remedy: RemedyConfig | None = None  # of a training; None = groups are trained on as they were sampled
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig | None = None  # of a training or an evaluation
    steps: int | None = None  # train: optimizer steps; pool generate: groups; replay: groups, None = all that match
    seed: int = 0  # of the choice of problems and rollouts, of the sampling and of random controls
    token_attribution: int | None = 0  # how many steps, from the first, record token shares; None = all
    preregistered: str | None = None  # NAME@SHA256 of the spec that this run belongs to

    def __post_init__(self) -> None:
        """Refuse tables of another verb, and settings that do not fit together."""
        at_least(1, steps=self.steps)
        at_least(0, token_attribution=self.token_attribution)
        self._check_tables()
        names = [condition.name for condition in self.conditions]
        if len(set(names)) != len(names):
            raise FieldError("conditions", "different names", ", ".join(names))
        objectives = self.objectives()
        if self.verb == "train":
            self._check_training()
        if self.verb == "replay":
            self._check_replay()
        if self.verb == "generate" and self.steps is None:
            raise FieldError("steps", "a number of groups", "none")
        if self.verb != "train" and any(objective.reward == "surprise" for objective in objectives.values()):
            raise FieldError("objective.reward", "paid outside of a training, which keeps a record", "surprise")
        if self.trains:
            for objective in objectives.values():
                self._check_control(objective)

    @classmethod
    def from_json(cls, table: Any, where: object) -> "RunConfig":
        """A run from its table: inverse of `asdict`; what is left out keeps its default.

        Raises:
            InputError: as `replay_pools.storage.tables.decode`, and what the settings refuse.
        """
        return decode(cls, table, where, known=KEYS)

    @property
    def trains(self) -> bool:
        """Whether weights move."""
        return self.verb in ("replay", "train") and self.optimizer.lr > 0

    def objectives(self) -> dict[str, LossSettings]:
        """{condition: its loss}, the primary first."""
        if not self.conditions:
            return {DEFAULT_CONDITION: self.objective}
        return {condition.name: condition.objective(self.objective) for condition in self.conditions}

    @property
    def primary(self) -> str:
        """The condition whose numbers stand for the run where there is room for one: `default`, or else the first."""
        names = list(self.objectives())
        return DEFAULT_CONDITION if DEFAULT_CONDITION in names else names[0]

    @property
    def reward_range(self) -> float:
        """Largest minus smallest reward that the loss can see."""
        return REWARD_RANGE + (0.0 if self.remedy is None else self.remedy.penalty)

    def _check_tables(self) -> None:
        """Every table of the verb, no table of another verb, and the model settings that the verb allows."""
        for name, verbs in TABLES_OF.items():
            is_given, is_wanted = getattr(self, name) is not None, self.verb in verbs
            if is_given != is_wanted:
                actual = f"no table {name}" if is_wanted else f"a table {name}, of {' and '.join(verbs)}"
                raise FieldError(name, f"the tables of {self.verb}: {', '.join(tables_of(self.verb))}", actual)
        if self.verb != "train" and self.remedy is not None:
            raise FieldError("remedy", "none outside of a training", self.remedy.name)
        if self.verb != "replay" and self.conditions:
            raise FieldError("conditions", "none outside of a replay", self.conditions[0].name)
        if self.verb != "replay" and self.model.dtype_noise:
            raise FieldError("model.dtype_noise", "0: a replay measures it", self.model.dtype_noise)
        if self.verb != "replay" and self.model.name is None:
            raise FieldError("model.name", "the policy, as organism or Qwen/Qwen3-4B", "none")

    def _check_replay(self) -> None:
        """One arm and condition where weights move; token shares need an arm that v_hack is measured in."""
        arms = self.intervention.arms
        if self.trains and len(arms) > 1:
            raise FieldError("intervention.arms", "one where optimizer.lr is above 0", ", ".join(arms))
        if self.trains and len(self.conditions) > 1:
            names = ", ".join(condition.name for condition in self.conditions)
            raise FieldError("conditions", "one where optimizer.lr is above 0", names)
        if self.token_attribution != 0 and measured_arm(arms) is None:
            raise FieldError("token_attribution", "an arm that uses v_hack", ", ".join(arms))

    def _check_training(self) -> None:
        """A policy, one arm, a loss with advantages, and whole batches of steps."""
        assert self.rollouts is not None
        if len(self.intervention.arms) > 1:
            raise FieldError("intervention.arms", "one arm in a training", ", ".join(self.intervention.arms))
        if not self.trains:
            raise FieldError("optimizer.lr", "above 0 in a training", f"{self.optimizer.lr:g}")
        if self.steps is None:
            raise FieldError("steps", "a number of optimizer steps", "none")
        if self.objective.loss_type == "nll":
            raise FieldError("objective.loss_type", "a loss with advantages", "nll")
        if (law := law_of(self.rollouts.sampler.to_json())) != PLAIN_LAW:
            raise FieldError("rollouts.sampler", f"{PLAIN_LAW}, the policy's own law, which the loss is of", law)
        if self.objective.beta and self.objective.reference == "recorded" and self.rollouts.is_on_policy:
            expected = "base or ema, where the policy has just sampled all rollouts: what it recorded is itself"
            raise FieldError("objective.reference", expected, "recorded")
        if self.rollouts.group < 2:
            raise FieldError("rollouts.group", "at least 2: a baseline is the mean of a group", self.rollouts.group)
        if self.rollouts.split != "train":
            raise FieldError("rollouts.split", "train in a training", self.rollouts.split)
        if self.rollouts.engine == "server" and self.model.adapter is not None:
            expected = "local with model.adapter: a server samples from the base model, without that adapter"
            raise FieldError("rollouts.engine", expected, "server")
        iterations, prefetch = self.rollouts.iterations, self.rollouts.prefetch
        self._check_records(self.rollouts, self.steps // iterations)
        self._check_shares(self.rollouts, self.steps)
        if (iterations > 1 or prefetch) and self.objective.old_logprobs == "current":
            actual = f"current with {iterations} iterations" if iterations > 1 else f"current with prefetch {prefetch}"
            raise FieldError("objective.old_logprobs", "recorded: only then is there a ratio", actual)
        if self.steps % iterations:
            actual = f"{self.steps} with {iterations} iterations"
            raise FieldError("steps", "a multiple of rollouts.iterations", actual)
        if self.steps == 1 and self.optimizer.warmup_steps:
            expected = "0 in a training of one step: a warm-up starts at the rate 0, so that nothing would be learnt"
            raise FieldError("optimizer.warmup_steps", expected, self.optimizer.warmup_steps)
        if self.remedy is not None:
            self._check_remedy(self.remedy)

    def _check_records(self, rollouts: RolloutConfig, num_batches: int) -> None:
        """No priority and no surprise where the record of the problems cannot act."""
        if rollouts.prioritise is not None and num_batches == 1:
            expected = "none in a training of one batch: nothing is known before it, and all weights are equal"
            raise FieldError("rollouts.prioritise", expected, rollouts.prioritise)
        if self.objective.reward == "surprise" and num_batches == 1:
            expected = "paid in a training of one batch: before it, as much is expected of every problem"
            raise FieldError("objective.reward", expected, "surprise")
        if self.objective.reward == "surprise" and rollouts.prompts_per_step == 1:
            expected = "paid with one prompt a step: the batch is one group, in which the expectation cancels"
            raise FieldError("objective.reward", expected, "surprise")

    def _check_shares(self, rollouts: RolloutConfig, steps: int) -> None:
        """Sources that give a rollout within the run, and not all of a group; a ratio for those of the past self."""
        last = steps - rollouts.iterations  # where the last batch begins
        for name, share in (("teacher", rollouts.teacher), ("past_self", rollouts.past_self)):
            if share is not None and not share.share(0) and not share.share(last):
                actual = f"0 in all of the {steps} steps"
                raise FieldError(f"rollouts.{name}.off_step", "a share above 0 in some step", actual)
        settled = max(0 if share is None else share.settled for share in (rollouts.teacher, rollouts.past_self))
        # On the way, too: where both shares move and each is rounded, they may fill a group between two that have room.
        for step in range(0, min(steps, settled + rollouts.iterations), rollouts.iterations):
            taught, past = rollouts.counts(step)
            if taught + past >= rollouts.group:
                expected = "a rollout of the policy itself beside those of rollouts.teacher and rollouts.past_self"
                actual = f"{taught} and {past} of {rollouts.group} in step {step}"
                raise FieldError("rollouts.group", expected, actual)
        if rollouts.past_self is not None and self.objective.old_logprobs == "current":
            expected = "recorded with rollouts.past_self: another policy sampled its rollouts, so that there is a ratio"
            raise FieldError("objective.old_logprobs", expected, "current")

    def _check_remedy(self, remedy: RemedyConfig) -> None:
        """No negative reward with maxrl, and nothing that compares an update with what was sampled under another."""
        assert self.rollouts is not None
        if remedy.penalty and self.objective.advantage_estimator == "maxrl":
            expected = "grpo with the remedy monitor-penalty: maxrl needs rewards of 0 and above"
            raise FieldError("objective.advantage_estimator", expected, "maxrl")
        if remedy.traits.changes_prompts and self.token_attribution != 0:
            expected = f"0 with the remedy {remedy.name}: token shares are of the prompts that were stored"
            raise FieldError("token_attribution", expected, self.token_attribution)
        if remedy.passes == "update-and-sampling" and self.rollouts.engine == "server":
            expected = "local with remedy.passes update-and-sampling: a server samples without the remedy"
            raise FieldError("rollouts.engine", expected, "server")
        if not (remedy.traits.changes_prompts or remedy.traits.changes_activations):
            return
        if remedy.is_off_policy and self.control.target_kl is not None:
            expected = f"none with the remedy {remedy.name}: its update measures no KL of the policy"
            raise FieldError("control.target_kl", expected, self.control.target_kl)
        if remedy.is_off_policy and self.control.beta_warmup_steps:
            expected = f"0 with the remedy {remedy.name}: beta rises with every KL of the policy, and none is measured"
            raise FieldError("control.beta_warmup_steps", expected, self.control.beta_warmup_steps)
        # What the policy sampled under the remedy itself has log-probabilities under it.
        if not remedy.is_off_policy and self.rollouts.teacher is None:
            return
        for name in ("old_logprobs", "reference"):
            if getattr(self.objective, name) == "recorded":
                others = "prompts" if remedy.traits.changes_prompts else "activations"
                expected = f"another with the remedy {remedy.name}: recorded log-probabilities are of other {others}"
                raise FieldError(f"objective.{name}", expected, "recorded")

    def _check_control(self, objective: LossSettings) -> None:
        """A target KL adapts beta between its bounds, and starts there."""
        control, beta = self.control, objective.beta
        if control.target_kl is not None and not 0 < control.beta_min <= beta <= control.beta_max:
            actual = f"beta_min {control.beta_min}, beta {beta}, beta_max {control.beta_max}"
            raise FieldError("control.target_kl", "0 < beta_min <= objective.beta <= beta_max", actual)


# The tables that some verbs take and others refuse; every verb takes the tables that are not listed.
TABLES_OF: dict[str, tuple[Verb, ...]] = {
    "source": ("replay",),
    "rollouts": ("train", "eval", "generate"),
    "evaluation": ("train", "eval"),
}
KEYS = keys_of(RunConfig)  # every setting, with dots
TABLES = tuple(entry.name for entry in fields(RunConfig))


def tables_of(verb: Verb) -> list[str]:
    """The tables of `TABLES_OF` that a verb takes."""
    return [name for name, verbs in TABLES_OF.items() if verb in verbs]


def normaliser(objective: LossSettings) -> Normaliser:
    """The normaliser of an objective, which pair gradients share with the loss."""
    return Normaliser(loss_type=objective.loss_type, max_completion_length=objective.max_completion_length)
