"""The words that settings accept are the keys of the tables that give them their meaning."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from extraction import loss
from extraction.words import BASES, LOSS_TYPES, STORAGES, Basis, LossType, Storage
from probe.objective import advantages
from probe.objective.advantages import advantage_bound
from probe.runs.sources.rewards import REMEDIES
from probe.settings import arms, words
from probe.settings.arms import ARMS
from probe.settings.loss import LossSettings
from probe.settings.presets import DEFAULT_PRESET, preset_names
from probe.settings.remedy import TRAITS
from probe.step import groups

TABLES = {
    "estimators": (words.Estimator, advantages.ESTIMATORS),
    "gates": (words.Gate, arms.GATES),
    "moments of gates": (words.Gate, arms.MOMENTS),
    "loss types": (LossType, loss._DENOMINATORS),
    "remedies": (words.Remedy, REMEDIES),
    "traits of remedies": (words.Remedy, TRAITS),
    "presets of the verbs": (words.Verb, DEFAULT_PRESET),
}


@pytest.mark.parametrize(("literal", "table"), TABLES.values(), ids=TABLES)
def test_every_word_has_its_row_and_every_row_its_word(literal, table) -> None:
    """Settings and help texts import no torch, the mathematics does; this pins the two together."""
    assert sorted(get_args(literal)) == sorted(table)


def test_the_tuples_are_those_of_the_literals() -> None:
    """What help texts list is what types accept."""
    pairs = [(words.ESTIMATORS, words.Estimator), (words.SCALES, words.Scale), (words.MATCHES, words.Match)]
    pairs += [(BASES, Basis), (LOSS_TYPES, LossType), (STORAGES, Storage)]
    for found, literal in pairs:
        assert found == get_args(literal)


@pytest.mark.parametrize("scale", words.SCALES)
@pytest.mark.parametrize("estimator", words.ESTIMATORS)
def test_every_estimator_and_scale_has_its_bound(estimator: words.Estimator, scale: words.Scale) -> None:
    """They are no keys of a table: two words that meant the same, here or in the bound, would show."""
    rewards = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    if estimator == "maxrl" and scale != "none":
        return
    options = {"eps": 0.0, "batch_std": 0.7}
    own = advantages.advantages(rewards, estimator=estimator, scale=scale, **options).tolist()
    bound = advantage_bound(3, 3.0, estimator=estimator, scale=scale, **options)
    assert max(map(abs, own)) <= bound
    for other in words.SCALES if estimator != "maxrl" else ():
        if other != scale:
            assert advantages.advantages(rewards, estimator=estimator, scale=other, **options).tolist() != own
            assert advantage_bound(3, 3.0, estimator=estimator, scale=other, **options) != bound


def test_every_word_of_the_loss_is_accepted() -> None:
    """Each word of each setting makes a loss beside the defaults of the others."""
    base = LossSettings(max_completion_length=9, reference="base")
    accepted: dict[str, Any] = {
        "loss_type": LossType,
        "advantage_estimator": words.Estimator,
        "scale_rewards": words.Scale,
        "old_logprobs": words.Old,
        "reference": words.Reference,
    }
    for name, literal in accepted.items():
        for word in get_args(literal):
            assert getattr(replace(base, **{name: word}), name) == word


def test_arms_have_words_of_the_gates_and_bases() -> None:
    assert {arm.gate for arm in ARMS.values()} <= {*get_args(words.Gate)}
    assert {arm.basis for arm in ARMS.values()} == {*BASES}


def test_every_verb_has_a_preset_file() -> None:
    assert {*DEFAULT_PRESET.values()} <= {*preset_names()}


def test_every_match_has_its_marks(fake_pool) -> None:
    for match in words.MATCHES:
        rollouts = sum(len(step) for step in fake_pool.steps)
        assert groups.ReplaySource([fake_pool], per_pool=1, match=match).num_steps == rollouts
