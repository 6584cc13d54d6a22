"""The words that settings accept are the keys of the tables that give them their meaning."""

from typing import get_args

import pytest

from extraction.words import BASES
from probe.objective import advantages
from probe.settings import arms, words
from probe.settings.arms import ARMS
from probe.settings.presets import DEFAULT_PRESET

TABLES = {
    "estimators": (words.Estimator, advantages.ESTIMATORS),
    "gates": (words.Side, arms.SIDES),
    "presets of the verbs": (words.Verb, DEFAULT_PRESET),
}


@pytest.mark.parametrize(("literal", "table"), TABLES.values(), ids=TABLES)
def test_every_word_has_its_row_and_every_row_its_word(literal, table) -> None:
    """Settings and help texts import no torch, the mathematics does; this pins the two together."""
    assert sorted(get_args(literal)) == sorted(table)


def test_arms_have_words_of_the_gates_and_bases() -> None:
    assert {arm.side for arm in ARMS.values()} <= {*get_args(words.Side)}
    assert {arm.basis for arm in ARMS.values()} == {*BASES}
