"""What separates hacks without a direction: the log ratio and a bag of words, and where they are missing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_records import sample_record
from worlds import World, make_run

from probe.analysis.analyze import analyze
from probe.analysis.detectors import Scores, score_all
from probe.analysis.rivals import material_of
from probe.analysis.statistics.classifiers import bayes_scores
from probe.records.records import SampleRecord
from probe.records.run import read_run
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.rollout import Rollout


def slow_scores(texts, hacked, prompts, chosen) -> list[float]:
    """The same, fitted anew for every row."""
    vocabulary = sorted({token for text in texts for token in text})
    scores = []
    for row, prompt in enumerate(prompts):
        total = 0.0
        for token in vocabulary:
            logs = []
            for side in (True, False):
                learned = [i for i in chosen if hacked[i] == side and prompts[i] != prompt]
                share = (sum(token in texts[i] for i in learned) + 1) / (len(learned) + 2)
                logs.append(np.log(share if token in texts[row] else 1 - share))
            total += logs[0] - logs[1]
        scores.append(total)
    return scores


def test_words_are_fitted_on_the_other_prompts() -> None:
    rng = np.random.default_rng(0)
    hacked, prompts = rng.random(24) < 0.5, np.repeat(np.arange(6), 4).tolist()
    texts = rng.integers(0, 30, (24, 10)).tolist()
    chosen = list(range(0, 24, 2))
    found = bayes_scores(texts, hacked.tolist(), prompts, chosen)
    np.testing.assert_allclose(found, slow_scores(texts, hacked.tolist(), prompts, chosen), atol=1e-9)


def log_ratio(sample: SampleRecord, rollout: Rollout) -> Scores:
    return score_all(material_of([sample], [rollout], None), ["logratio"])["logratio"]


def test_a_log_ratio_is_missing_where_the_weights_are_the_same_or_nothing_was_logged() -> None:
    rollout = open_pool(BUILTIN / "teacher").steps[0][0]
    logprobs = rollout.sampling_logprobs
    assert logprobs is not None
    nll = -sum(logprobs) / len(logprobs)
    assert log_ratio(sample_record(nll=nll + 0.5), rollout).values == pytest.approx([0.5])
    same = log_ratio(sample_record(nll=nll), rollout)
    assert same.values is None
    assert "the weights that sampled" in same.why
    unknown = log_ratio(sample_record(), replace(rollout, sampling_logprobs=None))
    assert "without log-prob" in unknown.why


def test_both_stand_in_an_analysis_and_say_why_where_the_pools_are_gone(tmp_path: Path) -> None:
    """The real reader, on a planted run, then on the same without its pools."""
    run = read_run(make_run(tmp_path / "out" / "runs" / "there", World(num_steps=12)))
    there = {row.name: row for row in analyze(run).of("auroc")}
    moved = [{**pool, "manifest_sha256": "0" * 64} for pool in run.config["pools"]]
    gone = analyze(replace(run, config={**run.config, "pools": moved}))
    # All hacks of this world are the teacher's texts.
    assert there["words"].value is not None
    assert there["words"].value > 0.9
    assert there["logratio"].value is not None
    for row in gone.of("auroc")[-2:]:
        assert row.value is None
        assert "not as the run read it" in row.why
    assert "AUROC" in gone.verdict.finding("about").text
