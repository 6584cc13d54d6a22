"""The lookahead of a replay: every arm takes a few optimizer steps on the stored rollouts.

Step i makes a training's update (`probe.step.step.step_only`) on group i of the replay, starting over after the last
group. Every arm starts at the replay's weights, and its steps are undone. `lookahead.jsonl` holds one `LookaheadRecord`
for each arm, measure and prompt:

    hacks, honest                     gain in log-probability, in nats a rollout, of the replay's rewarded hacks and of
                                      its right honest solutions: NUM_TEXTS of each, spread over the replay
    held-out hacks, held-out clean    the same for held-out pairs, in nats a completion
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from extraction.adapters.trained import Trained
from extraction.batch import make_batch
from extraction.library import pair_batch
from extraction.selection import selected_pairs
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
    """Write `lookahead.jsonl`.

    Args:
        config: settings with a lookahead.
        policy: the replay's policy.
        setup: the setup of its steps.
        source: the source of its groups.
        directory: the run.
        say: called with a sentence if the steps of an arm stop early.
    """
    records: list[LookaheadRecord] = []
    measures = [measure for measure in setup.measures(0) if measure.condition == config.primary]
    ahead = Lookahead(config, policy, setup, source, say)
    for number, measure in enumerate(measures):
        records += ahead.records(config, setup, source, measure)
        report("arms that looked ahead", number + 1, len(measures))
    write_atomic(directory / LOOKAHEAD_FILE, encode_jsonl(record.to_json() for record in records))


class Lookahead:
    """The texts of one replay, held-out pairs and rewarded rollouts, shared by all arms and remedies.

    Arguments as in `look_ahead`.

    Attributes:
        seconds: CPU seconds of the steps, one entry an arm, in order.
    """

    def __init__(
        self,
        config: ReplayConfig,
        policy: Policy,
        setup: Setup,
        source: GroupSource,
        say: Callable[[str], None],
    ) -> None:
        self._say, self.seconds = say, list[float]()
        keys = dict.fromkeys(
            key for step in range(source.num_steps) for group in source.groups(step) for key in group.keys
        )
        rollouts = [*map(source.rollout, keys)]
        self._prompts: dict[str, list[str]] = {}  # by measure
        chosen: list[Rollout] = []
        for name, is_text in TEXTS.items():
            texts = [rollout for rollout in rollouts if is_text(rollout)]
            texts = texts[:: -(-len(texts) // NUM_TEXTS) or 1]
            self._prompts[name] = [rollout.problem_id for rollout in texts]
            chosen += texts
        self._batches = []
        self._at_start: dict[Basis, list[float]] = {}
        if chosen:
            texts = [(each.prompt_ids, each.completion_ids, each.completion_mask) for each in chosen]
            prompts, completions, masks = zip(*texts, strict=True)
            self._batches.append(make_batch(prompts, completions, setup.pad_id, masks).to(setup.bases.device))
        pairs = [pair for pair in selected_pairs(config.intervention.extraction) if pair.held_out]
        if pairs:
            self._batches.append(pair_batch(policy, pairs))
            for name in ("held-out hacks", "held-out clean"):
                self._prompts[name] = [pair.pair_id for pair in pairs]

    def records(
        self, config: ReplayConfig, setup: Setup, source: GroupSource, measure: Measure
    ) -> list[LookaheadRecord]:
        """Take the steps of one arm and return its gains.

        Args:
            config: settings with the lookahead.
            setup: loss and activations of the steps.
            source: rewards and prompts of the steps.
            measure: the arm.
        """
        with _moved(setup.bases, measure.arm.basis) as bases:
            # Equal for all arms of a basis.
            if measure.arm.basis not in self._at_start:
                self._at_start[measure.arm.basis] = self._scores(bases)
            start = time.process_time()
            updater = _stepped(config, setup, source, measure, bases, self._say)
            self.seconds.append(time.process_time() - start)
            with updater.deployed():
                after = self._scores(bases)
        pairs = zip(self._at_start[measure.arm.basis], after, strict=True)
        gains = iter([now - then for then, now in pairs])
        found = {
            name: prompt_means([next(gains) for _ in prompts], prompts)
            for name, prompts in self._prompts.items()
            if prompts
        }
        return [
            LookaheadRecord(arm=measure.arm.name, measure=name, prompt=str(prompt), value=value)
            for name, values in found.items()
            for prompt, value in values.items()
        ]

    def _scores(self, bases: Bases) -> list[float]:
        """Return the log-probability of every text, nats."""
        return [value for batch in self._batches for value in bases.score(batch).double().sum(1).tolist()]


@contextmanager
def _moved(bases: Bases, basis: Basis) -> Iterator[Bases]:
    """Give the policy an adapter in a basis while open; closing removes it and its steps."""
    frames = bases.frames[basis]
    trained = Trained(bases.model, frames)
    try:
        yield replace(bases, frames={basis: frames}, trained=trained)
    finally:
        trained.remove()


def _stepped(
    config: ReplayConfig,
    setup: Setup,
    source: GroupSource,
    measure: Measure,
    bases: Bases,
    say: Callable[[str], None],
) -> Updater:
    """Take the steps of an arm and return its updater."""
    settings, trained = config.lookahead, bases.trained
    assert settings is not None
    assert trained is not None
    optimizer = OptimizerConfig(lr=settings.lr, schedule="constant", max_grad_norm=MAX_GRAD_NORM)
    updater = Updater(trained, measure.arm, optimizer, settings.steps, measure.target)
    references = References(trained)
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
            say(f"lookahead of {measure.arm.name}: stopped after {number} steps: {broken}")
            break
    return updater
