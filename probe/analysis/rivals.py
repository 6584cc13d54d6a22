"""Scores without a direction that may separate hacks from clean answers as well as v_hack does.

    comp_len, nll, grad_norm, hint   from the records: `probe.analysis.cosines.TRIVIAL`
    logratio                         mean over tokens of the sampling weights' log-probability minus the
                                     log-probability under the weights where the gradient is taken
    words                            a naive Bayes classifier on the set of token ids, trained on at most the number of
                                     labels that v_hack used, and never on the prompt that it scores

The last two need the run's pools and are missing without them.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from probe.analysis.cosines import LOG_RATIO, SCORES, WORDS, area, strength
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.intervals import Array, cluster_numbers
from probe.analysis.verdict.pools import OFF_POLICY, read_pools
from probe.records.records import SampleRecord
from probe.records.run import Run
from replay_pools.rollout import Rollout

SMOOTHING = 1.0  # pseudo-count of texts per side, with and without every token


def log_ratio(samples: Sequence[SampleRecord], rollouts: Sequence[Rollout]) -> list[float] | str:
    """Return each sample's log ratio, nats per token, or a sentence that says why it is missing."""
    ratios = []
    for sample, rollout in zip(samples, rollouts, strict=True):
        if not rollout.sampling_logprobs or sample.nll is None:
            return f"pool {sample.src_pool} has rollouts without log-probabilities"
        ratios.append(fmean(rollout.sampling_logprobs) + sample.nll)
    if fmean(map(abs, ratios)) < OFF_POLICY:
        return "the weights that sampled are the weights where the gradient is taken"
    return ratios


def words(samples: Sequence[SampleRecord], rollouts: Sequence[Rollout], most: int | None) -> list[float] | str:
    """Score each sample by the token ids of its completion, or return a sentence that says why nothing can be learned.

    Args:
        samples: rewarded samples with a label.
        rollouts: their texts.
        most: number of labels to learn from; None: all.
    """
    hacked = [bool(sample.hacked) for sample in samples]
    prompts = [sample.problem_id for sample in samples]
    chosen = _spread(hacked, prompts, len(samples) if most is None else most)
    sides = {(prompts[row], hacked[row]) for row in chosen}
    if min(len({prompt for prompt, side in sides if side is label}) for label in (True, False)) < 2:
        return "too few prompts with a label of each kind to learn from"
    return bayes_scores([rollout.completion_ids for rollout in rollouts], hacked, prompts, chosen).tolist()


def _spread(hacked: Sequence[bool], prompts: Sequence[Hashable], most: int) -> list[int]:
    """Return at most `most` rows, balanced between the sides, taking prompts in turn."""
    rows_of: dict[bool, dict[Hashable, list[int]]] = {True: defaultdict(list), False: defaultdict(list)}
    for row, (side, prompt) in enumerate(zip(hacked, prompts, strict=True)):
        rows_of[side][prompt].append(row)
    chosen: list[int] = []
    for side, by_prompt in rows_of.items():
        turns = sorted((place, row) for rows in by_prompt.values() for place, row in enumerate(rows))
        of_side = most // 2 if side else most - most // 2
        chosen += [row for _, row in turns[:of_side]]
    return chosen


def bayes_scores(
    texts: Sequence[Sequence[int]], hacked: Sequence[bool], prompts: Sequence[Hashable], chosen: Sequence[int]
) -> Array:
    """Return (rows,) log odds of a hack by a Bernoulli naive Bayes classifier, fitted without the row's own prompt.

    Args:
        texts: token ids of each row.
        hacked: label of each row.
        prompts: prompt of each row.
        chosen: training rows.
    """
    sets = [np.unique(np.asarray(text, dtype=np.int64)) for text in texts]
    vocabulary = np.unique(np.concatenate(sets)) if sets else np.zeros(0, dtype=np.int64)
    tokens = [np.searchsorted(vocabulary, one) for one in sets]
    member, side = cluster_numbers(prompts), np.asarray(hacked, dtype=np.intp)
    counts, sizes = np.zeros((2, len(vocabulary))), np.zeros(2)  # texts with each token, all texts; by side
    for row in chosen:
        counts[side[row], tokens[row]] += 1
        sizes[side[row]] += 1
    scores = np.zeros(len(texts))
    learned = set(chosen)
    for prompt in np.unique(member):
        rows = np.flatnonzero(member == prompt)
        others, left = counts.copy(), sizes.copy()
        for row in rows:
            if row in learned:
                others[side[row], tokens[row]] -= 1
                left[side[row]] -= 1
        share = (others + SMOOTHING) / (left + 2 * SMOOTHING)[:, None]
        absent = np.log1p(-share[1]) - np.log1p(-share[0])
        present = np.log(share[1]) - np.log(share[0])
        for row in rows:
            scores[row] = absent.sum() + (present - absent)[tokens[row]].sum()
    return scores


def areas(run: Run, samples: Sequence[SampleRecord], arm: str, *, labels: int | None) -> list[Estimate]:
    """Return the AUROC of v_hack for hacks among rewarded samples, then of every score without a direction.

    Args:
        run: the run with the pools.
        samples: the arm's samples, with labels.
        arm: name of the arm, for the estimates.
        labels: number of labels behind v_hack; None: unknown.
    """
    rows = [area(samples, map(score, samples), name, arm) for name, score in SCORES.items()]
    paid = [sample for sample in samples if sample.advantage > 0]
    stored, missing = read_pools(replace(run, samples=paid))
    rollouts = [stored.get((sample.src_pool, sample.src_step, sample.src_sample)) for sample in paid]
    found = [rollout for rollout in rollouts if rollout is not None]
    why = "no rewarded rollout has a label" if not paid else ""
    if len(found) < len(paid):
        why = "; ".join(f"pool {name}: {reason}" for name, reason in missing.items()) or "a rollout is not in its pool"
    for name, made in ((LOG_RATIO, why or log_ratio(paid, found)), (WORDS, why or words(paid, found, labels))):
        if isinstance(made, str):
            rows.append(replace(area([], [], name, arm), why=made))
        else:
            rows.append(area(paid, made, name, arm))
    return rows


def best_rival(rows: Sequence[Estimate]) -> Estimate | None:
    """Return the score without a direction that best separates hacks; None if none is measured."""
    measured = [row for row in rows[1:] if row.value is not None]
    return max(measured, key=strength, default=None)
