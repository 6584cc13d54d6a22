"""Stored ids against the model that they are of, without its weights."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from replay_pools.base.errors import InputError, refuse
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import load_served_policy
from replay_pools.pool import BUILTIN, Pool, open_pool
from replay_pools.rollout import Rollout
from replay_pools.vocabulary import decoded_text, id_faults


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


def _ids(rollout: Rollout, ids: list[int]) -> Rollout:
    return replace(rollout, completion_ids=ids, comp_len=len(ids))


CHANGES: dict[str, Callable[[Rollout], Rollout]] = {
    "expected token ids of organism, 0 to 1023, found 1 others, the first 1024": lambda rollout: _ids(
        rollout, [1024, *rollout.completion_ids[1:]]
    ),
    "completion_ids: expected no id after the end of the turn, found 2 ids after id 2": lambda rollout: _ids(
        rollout, [*rollout.completion_ids, 2, 2]
    ),
    "completion: expected the text of completion_ids": lambda rollout: replace(
        rollout, completion=rollout.completion.replace("return", "yield", 1)
    ),
    "prompt: expected the text of prompt_ids": lambda rollout: replace(rollout, prompt="x" + rollout.prompt),
    # Rollout 0 has that very text, with the ids that say it.
    "prompt: expected the text of prompt_ids by the tokenizer": lambda rollout: replace(
        rollout, prompt_ids=[7, *rollout.prompt_ids[1:]]
    ),
}


@pytest.mark.parametrize("message", CHANGES)
def test_each_contradiction_is_named_once_and_counted(chat: Chat, changed: Callable[..., Pool], message: str) -> None:
    (fault,) = id_faults(chat, changed(CHANGES[message]))
    assert str(fault).startswith("pool base step 0 sample 1")
    assert message in str(fault)
    assert "(and 1 more places" in str(fault)


def test_all_kinds_are_refused_at_once(chat: Chat, changed: Callable[..., Pool]) -> None:
    pool = changed(lambda rollout: replace(rollout, prompt="x", completion="y"))
    with pytest.raises(InputError, match=r"(?s)expected the text of completion_ids.*\npool .* the text of prompt_ids"):
        refuse(id_faults(chat, pool))


def test_whitespace_and_special_tokens_contradict_nothing(chat: Chat, changed: Callable[..., Pool]) -> None:
    """Loggers keep the end of the turn in the text or strip it; the text of the ids takes its place in an import."""
    end = chat.tokenizer.convert_ids_to_tokens(2)
    pool = changed(lambda rollout: replace(rollout, completion=f" {rollout.completion}{end}\n"))
    assert id_faults(chat, pool) == []
    logged, plain = pool.steps[0][1], open_pool(BUILTIN / "base").steps[0][1]
    assert (logged.completion != plain.completion, decoded_text(chat, logged)) == (True, plain.completion)
