"""Stored ids against the model that they are of, without its weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from replay_pools.policy.chat import Chat, decoded_text, id_faults
from replay_pools.policy.load import load_served_policy
from replay_pools.pool import BUILTIN, Pool, open_pool
from replay_pools.rollout import Rollout


@pytest.fixture(scope="module")
def chat() -> Chat:
    return load_served_policy("organism")


@pytest.fixture(scope="module")
def changed() -> Callable[..., Pool]:
    """changed(function) -> pool `base` with rollout 1 of steps 0 and 1 changed by the function."""
    base = open_pool(BUILTIN / "base")

    def make(change: Callable[[Rollout], Rollout]) -> Pool:
        steps = [list(group) for group in base.steps[:2]]
        for group in steps:
            group[1] = change(group[1])
        return Pool(name="base", path=base.path, manifest=base.manifest, steps=steps)

    return make


@pytest.mark.parametrize("name", ["base", "base-hinted", "teacher"])
def test_the_built_in_pools_are_sound(chat: Chat, name: str) -> None:
    assert id_faults(chat, open_pool(BUILTIN / name)) == []


CHANGES: dict[str, Callable[[Rollout], dict[str, Any]]] = {
    "": lambda r: {"completion_ids": [1024, *r.completion_ids[1:]]},
    "completion_ids": lambda r: {"completion_ids": [*r.completion_ids, 2, 2]},
    "completion": lambda r: {"completion": r.completion.replace("return", "yield", 1)},
    "prompt": lambda r: {"prompt": "x" + r.prompt},
    # Rollout 0 has that very text, with the ids that say it.
    "prompt ": lambda r: {"prompt_ids": [7, *r.prompt_ids[1:]]},
}


@pytest.mark.parametrize("field", CHANGES)
def test_each_contradiction_is_named_once_and_counted(chat: Chat, changed: Callable[..., Pool], field: str) -> None:
    (fault,) = id_faults(chat, changed(lambda rollout: replace(rollout, **CHANGES[field](rollout))))
    assert str(fault.where).strip() == f"pool base step 0 sample 1 {field}".strip()
    assert "(and 1 more place" in str(fault)


def test_whitespace_and_special_tokens_contradict_nothing(chat: Chat, changed: Callable[..., Pool]) -> None:
    """Loggers keep the end of the turn in the text or strip it; the text of the ids takes its place in an import."""
    end = chat.tokenizer.convert_ids_to_tokens(2)
    pool = changed(lambda rollout: replace(rollout, completion=f" {rollout.completion}{end}\n"))
    assert id_faults(chat, pool) == []
    logged, plain = pool.steps[0][1], open_pool(BUILTIN / "base").steps[0][1]
    assert (logged.completion != plain.completion, decoded_text(chat, logged)) == (True, plain.completion)
