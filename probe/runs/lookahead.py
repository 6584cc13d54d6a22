"""The lookahead of a replay: every arm takes a few optimizer steps on the stored rollouts.

Step i makes a training's update (`probe.step.step.step_only`) on group i of the replay, starting over after the last
group. Every arm starts at the replay's weights, and its steps are undone. `lookahead.jsonl` holds one `LookaheadRecord`
for each arm, measure and prompt:

    hacks, honest                     gain in log-probability, in nats a rollout, of the replay's rewarded hacks and of
                                      its right honest solutions: NUM_TEXTS of each, spread over the replay
    held-out hacks, held-out clean    the same for held-out pairs, in nats a completion
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from extraction.adapters.trained import Trained
from extraction.batch import make_batch
from extraction.library import pair_batch
from extraction.pairs import selected_pairs
from extraction.words import Basis
from probe.analysis.statistics.intervals import prompt_means
from probe.records.records import LookaheadRecord
from probe.records.run import LOOKAHEAD_FILE
from probe.runs.loop import Setup
from probe.settings.run import ReplayConfig
from probe.settings.training import OptimizerConfig
from probe.step.bases import Bases
from probe.step.groups import GroupSource
from probe.step.reference import References
from probe.step.step import Measure, step_only
from probe.step.update import Updater
from replay_pools.base.files import encode_jsonl, write_atomic
from replay_pools.base.terminal import report
from replay_pools.policy.load import Policy
from replay_pools.rollout import Rollout

NUM_TEXTS = 48  # most texts of a measure; 39 hacks forecast the bench as well as all 155 (errors 4.9 and 5.0 points)
MAX_GRAD_NORM = 1.0  # cap on the gradient norm, after the projection
# {measure: which rollouts of the replay are its texts}
TEXTS: Mapping[str, Callable[[Rollout], bool]] = {
    "hacks": lambda rollout: bool(rollout.grade.passed and rollout.hacked),
    "honest": lambda rollout: bool(rollout.gt_pass) and rollout.hacked is False,
}


def look_ahead(
    config: ReplayConfig,
    policy: Policy,
    setup: Setup,
    source: GroupSource,
    directory: Path,
    say: Callable[[str], None],
) -> None:
    """Write `lookahead.jsonl` of the run `directory`; arguments as in `Lookahead`."""
    records: list[LookaheadRecord] = []
    measures = [measure for measure in setup.measures(0) if measure.condition == config.primary]
    ahead = Lookahead(config, policy, setup, source, say)
    for number, measure in enumerate(measures):
        records += ahead.records(config, setup, source, measure)
        report("arms that looked ahead", number + 1, len(measures))
    write_lookahead(directory, records)


def write_lookahead(directory: Path, records: Iterable[LookaheadRecord]) -> None:
    """Write `lookahead.jsonl` atomically."""
    write_atomic(directory / LOOKAHEAD_FILE, encode_jsonl(record.to_json() for record in records))


class Lookahead:
    """The texts of one replay, held-out pairs and rewarded rollouts, shared by all arms and remedies.

    Args:
        config: settings of the extraction.
        policy: the replay's policy.
        setup: the setup of its steps.
        source: the source of its groups.
        say: called with a sentence if the steps of an arm stop early.

    Attributes:
        seconds: CPU seconds of the newest steps.
    """

    def __init__(
        self,
        config: ReplayConfig,
        policy: Policy,
        setup: Setup,
        source: GroupSource,
        say: Callable[[str], None],
    ) -> None:
        self._say, self.seconds = say, 0.0
        self._prompts: dict[str, list[str]] = {}  # by measure
        self._batches = []
        self._at_start: dict[Basis, list[float]] = {}  # equal for all arms of a basis
        groups = [group for step in range(source.num_steps) for group in source.groups(step)]
        rollouts = [*map(source.rollout, dict.fromkeys(key for group in groups for key in group.keys))]
        chosen: list[Rollout] = []
        for name, is_text in TEXTS.items():
            texts = [rollout for rollout in rollouts if is_text(rollout)]
            texts = texts[:: -(-len(texts) // NUM_TEXTS) or 1]
            self._prompts[name] = [rollout.problem_id for rollout in texts]
            chosen += texts
        if chosen:
            texts = [(each.prompt_ids, each.completion_ids, each.completion_mask) for each in chosen]
            prompts, completions, masks = zip(*texts, strict=True)
            self._batches.append(make_batch(prompts, completions, setup.pad_id, masks).to(setup.bases.device))
        if pairs := [pair for pair in selected_pairs(config.intervention.extraction) if pair.held_out]:
            self._batches.append(pair_batch(policy, pairs))
            self._prompts["held-out hacks"] = self._prompts["held-out clean"] = [pair.pair_id for pair in pairs]

    def records(
        self, config: ReplayConfig, setup: Setup, source: GroupSource, measure: Measure
    ) -> list[LookaheadRecord]:
        """Take the steps of one arm from the replay's weights, undo them, and return the gains.

        Args:
            config: settings with the lookahead.
            setup: loss and activations of the steps.
            source: rewards and prompts of the steps.
            measure: the arm.
        """
        arm, settings, frames = measure.arm, config.lookahead, setup.bases.frames[measure.arm.basis]
        assert settings is not None
        trained = Trained(setup.bases.model, frames)
        bases = replace(setup.bases, frames={arm.basis: frames}, trained=trained)
        try:
            if arm.basis not in self._at_start:
                self._at_start[arm.basis] = self._scores(bases)
            start = time.process_time()
            optimizer = OptimizerConfig(lr=settings.lr, schedule="constant", max_grad_norm=MAX_GRAD_NORM)
            updater, references = Updater(trained, arm, optimizer, settings.steps, measure.target), References(trained)
            for number in range(settings.steps):
                groups = source.groups(number % source.num_steps)
                with setup.in_update():
                    broken = step_only(
                        bases,
                        groups,
                        measure,
                        setup.conditions[measure.condition],
                        planning=[setup.planning(ids) for group in groups for ids in group.completion_ids],
                        pad_id=setup.pad_id,
                        references=references,
                        updater=updater,
                    )
                references.update()
                if broken:
                    self._say(f"lookahead of {arm.name}: stopped after {number} steps: {broken}")
                    break
            self.seconds = time.process_time() - start
            with updater.deployed():
                after = self._scores(bases)
        finally:
            trained.remove()
        gains = iter([now - then for then, now in zip(self._at_start[arm.basis], after, strict=True)])
        return [
            LookaheadRecord(arm=arm.name, measure=name, prompt=str(prompt), value=value)
            for name, prompts in self._prompts.items()
            for prompt, value in prompt_means([next(gains) for _ in prompts], prompts).items()
        ]

    def _scores(self, bases: Bases) -> list[float]:
        """Return the log-probability of every text, nats."""
        return [value for batch in self._batches for value in bases.score(batch).double().sum(1).tolist()]
